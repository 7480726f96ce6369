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
        description="Where the store lives: `sqlite:///file.db`, `postgresql://user:password@host/name` or "
        "`mysql://user:password@host/name`. `postgres://` and `mariadb://` mean the same as their "
        "longer names. A password with special characters is percent-encoded.",
    )
    max_connections: Count = Field(
        default=10,
        ge=3,
        le=10_000,
        description="Most connections this process holds open at once, all counted. At least 3: one for "
        "hints, one for claims, one for everything else. SQLite has no use for it.",
    )
    statement_timeout: Duration = Field(
        default=10.0,
        gt=0,
        description="A statement that runs longer is cancelled by the server. Two seconds later the client "
        "gives up as well and closes the connection, which may have died without a word. Keep it well below "
        "`worker.lease_ttl`. Migrations may take longer.",
    )
    wait_at_start: Duration = Field(
        default=60.0,
        description="How long a server, dispatcher or worker that starts waits for a database that does not "
        "answer, or has no free connection, before it ends with exit code 6. It says so in the log.",
    )
    migrate: bool = Field(
        default=True,
        description="Whether `fusee up` and its kin bring the schema up to date when they start.",
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
