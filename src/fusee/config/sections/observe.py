"""What the program tells about itself."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from fusee.config.sections.section import Section

__all__ = ["LoggingConfig", "MetricsConfig"]


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class LoggingConfig(Section):
    level: Annotated[Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(_lower)] = (
        Field(default="info", description="The least serious message that is logged.")
    )
    format: Annotated[Literal["auto", "console", "json"], BeforeValidator(_lower)] = Field(
        default="auto", description="`auto` is `console` on a terminal and `json` elsewhere."
    )


class MetricsConfig(Section):
    enabled: bool = Field(default=True, description="Whether Prometheus metrics are collected and served.")
