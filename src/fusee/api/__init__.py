"""REST: a thin skin on the operations.

api = create_api(services)
server = ApiServer(api)
await server.run()
"""

from fusee.api.build import create_api, create_status
from fusee.api.gate import refuse_open_bind
from fusee.api.problems import Problem
from fusee.api.services import Operations, Services
from fusee.api.serving import ApiServer, StatusServer

__all__ = [
    "ApiServer",
    "Operations",
    "Problem",
    "Services",
    "StatusServer",
    "create_api",
    "create_status",
    "refuse_open_bind",
]
