"""Batches over jobs of change data capture: start, stop, switch zone, reset GTID, change config, and more.

from fusee import Fusee
from fusee.contrib import cdc

app = Fusee()
cdc.register(app, cdc.KafkaConnectDriver("http://connect:8083"))
"""

from fusee.contrib.cdc.driver import Driver, Migrates, NotReached, Refused, Unsure
from fusee.contrib.cdc.drivers.control_plane import ControlPlaneDriver
from fusee.contrib.cdc.drivers.kafka_connect import KafkaConnectDriver
from fusee.contrib.cdc.operations import OPERATIONS, register

__all__ = [
    "OPERATIONS",
    "ControlPlaneDriver",
    "Driver",
    "KafkaConnectDriver",
    "Migrates",
    "NotReached",
    "Refused",
    "Unsure",
    "register",
]
