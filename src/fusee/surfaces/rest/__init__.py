"""The REST kit: authentication, errors, paging, streaming."""
