"""The reference control plane: a small real HTTP server that holds CDC jobs, for demos and tests.

It journals every change it makes, so that what a batch says can be held against what happened; it hangs,
fails and answers late on demand; and it takes idempotency keys and fencing tokens, as a control plane should.
It has no authentication, and listens on loopback alone.
"""

from fusee.contrib.cdc.control_plane.audit import Audit, audit
from fusee.contrib.cdc.control_plane.journal import Entry, Journal, read_journal
from fusee.contrib.cdc.control_plane.process import Plane, plane_running

__all__ = ["Audit", "Entry", "Journal", "Plane", "audit", "plane_running", "read_journal"]
