"""What brings runs to workers."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fusee.config.addresses import check_broker_url, hide_password
from fusee.config.sections.section import SECRET, Section
from fusee.config.units import Count, Duration

__all__ = ["BrokerConfig"]


class BrokerConfig(Section):
    type: Literal["database", "rabbitmq"] = Field(
        default="database",
        description="`database`: workers claim runs from the store. `rabbitmq`: dispatchers publish them, "
        "and workers need no database; needs the extra `rabbitmq`.",
    )
    url: Annotated[str, SECRET, AfterValidator(check_broker_url)] = Field(
        default="amqp://guest:guest@127.0.0.1:5672/",
        description="Where RabbitMQ is: `amqp://user:password@host:port/vhost`, or `amqps://` for TLS.",
    )
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")] = Field(
        default="fusee",
        description="What the names of queues and exchanges begin with. Installations that share a RabbitMQ "
        "virtual host and not a database need different ones.",
    )
    prefetch: Count = Field(
        default=16,
        ge=1,
        le=1000,
        description="Messages of each queue that a worker may hold before it has accepted them.",
    )
    redispatch_after: Duration = Field(
        default=10.0,
        ge=0.1,
        description="A run that was published this long ago, is in no queue and has not started is published "
        "again.",
    )
    delivery_limit: Count = Field(
        default=20,
        ge=1,
        le=1000,
        description="A message delivered more often than this without an answer is given up and becomes a "
        "dead letter. It is part of the queues: change it together with `prefix`.",
    )

    @property
    def safe_url(self) -> str:
        """The URL without its password, fit for a log."""
        return hide_password(self.url)

    def shown(self, name: str, value: Any) -> str:
        return hide_password(value) if name == "url" else super().shown(name, value)
