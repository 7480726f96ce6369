"""What the program connects to: the database, which holds the truth, and what brings runs to workers."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from fusee.config.addresses import DIALECTS, check_broker_url, check_database_url, hide_password
from fusee.config.sections.section import SECRET, Section
from fusee.config.units import Count, Duration

__all__ = ["BrokerConfig", "DatabaseConfig"]


class DatabaseConfig(Section):
    url: Annotated[str, SECRET, AfterValidator(check_database_url)] = Field(
        default="sqlite:///fusee.db",
        description="The address of the database: `sqlite:///file.db`, "
        "`postgresql://user:password@host/name` or `mysql://user:password@host/name`. `postgres://` and "
        "`mariadb://` mean the same as their longer names. Percent-encode special characters in a password.",
    )
    max_connections: Count = Field(
        default=10,
        ge=3,
        le=10_000,
        description="The largest number of connections that this process keeps open. At least 3: one for "
        "hints, one for claims, one for everything else. SQLite ignores it.",
    )
    statement_timeout: Duration = Field(
        default=10.0,
        gt=0,
        description="The server cancels a statement that runs longer. Two seconds later the client gives up "
        "too and closes the connection, which may be dead. Keep it well below `worker.lease_ttl`. "
        "Migrations may take longer.",
    )
    wait_at_start: Duration = Field(
        default=60.0,
        description="How long a starting server, dispatcher or worker waits for a database that does not "
        "answer or has no free connection, before it exits with code 6. It logs that it waits.",
    )
    migrate: bool = Field(
        default=True,
        description="Whether `fusee up`, `server`, `dispatcher` and `worker` upgrade the schema when they "
        "start.",
    )

    @property
    def dialect(self) -> str:
        """`sqlite`, `postgresql` or `mysql`."""
        return DIALECTS[self.url.partition("://")[0]]

    @property
    def safe_url(self) -> str:
        """The URL without its password, fit for a log."""
        return hide_password(self.url)

    def shown(self, name: str, value: Any) -> str:
        return hide_password(value) if name == "url" else super().shown(name, value)


class BrokerConfig(Section):
    type: Literal["database", "rabbitmq"] = Field(
        default="database",
        description="`database`: workers claim runs from the store. `rabbitmq`: dispatchers publish them, "
        "and workers need no database; needs the extra `rabbitmq`.",
    )
    url: Annotated[str, SECRET, AfterValidator(check_broker_url)] = Field(
        default="amqp://guest:guest@127.0.0.1:5672/",
        description="The address of RabbitMQ: `amqp://user:password@host:port/vhost`, or `amqps://` for TLS.",
    )
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")] = Field(
        default="fusee",
        description="The prefix of the names of queues and exchanges. Installations that share a RabbitMQ "
        "virtual host but not a database need different prefixes.",
    )
    prefetch: Count = Field(
        default=16,
        ge=1,
        le=1000,
        description="The number of messages of each queue that a worker may hold before it accepts them.",
    )
    redispatch_after: Duration = Field(
        default=10.0,
        ge=0.1,
        description="A run is published again when it was published this long ago, is in no queue and has "
        "not started.",
    )
    delivery_limit: Count = Field(
        default=20,
        ge=1,
        le=1000,
        description="A message that was delivered more often than this without an acknowledgement becomes a "
        "dead letter. The limit is part of the queues: change it together with `prefix`.",
    )

    @property
    def safe_url(self) -> str:
        """The URL without its password, fit for a log."""
        return hide_password(self.url)

    def shown(self, name: str, value: Any) -> str:
        return hide_password(value) if name == "url" else super().shown(name, value)
