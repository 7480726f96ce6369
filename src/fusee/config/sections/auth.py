"""Who may use the API, and how."""

from typing import Literal

from pydantic import Field

from fusee.config.sections.section import Section

__all__ = ["AuthConfig"]


class AuthConfig(Section):
    local: Literal["admin", "viewer", "off"] = Field(
        default="admin",
        description="The role of callers on this machine that send no API key, while no key has ever been "
        "created: `admin`, `viewer`, or `off` to ask for a key from the start. Once there was a key, "
        "everybody needs one.",
    )
