"""Brings runs to workers by messages. Messages carry hints; the store alone is the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusee.config import BrokerConfig
from fusee.errors import ConfigError

if TYPE_CHECKING:
    from fusee.broker.rabbitmq import RabbitMQ

__all__ = ["rabbitmq_of"]


def rabbitmq_of(config: BrokerConfig) -> RabbitMQ | None:
    """The message broker that the configuration names, or None if workers claim from the database."""
    if config.type != "rabbitmq":
        return None
    try:
        from fusee.broker.rabbitmq import RabbitMQ
        from fusee.broker.rabbitmq.topology import Topology
    except ModuleNotFoundError as error:
        raise ConfigError(f"broker.type rabbitmq needs {error.name}: pip install 'fusee[rabbitmq]'") from None
    return RabbitMQ(config.url, Topology(config.prefix, config.delivery_limit), config.prefetch)
