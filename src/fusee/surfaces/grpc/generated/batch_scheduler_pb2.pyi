from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EventType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_TYPE_UNSPECIFIED: _ClassVar[EventType]
    CREATE_BATCH: _ClassVar[EventType]
    WAKE_BATCH: _ClassVar[EventType]
EVENT_TYPE_UNSPECIFIED: EventType
CREATE_BATCH: EventType
WAKE_BATCH: EventType

class TriggerEventRequest(_message.Message):
    __slots__ = ("event_type", "req_data", "job_data", "batch_id", "idempotency_key")
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    REQ_DATA_FIELD_NUMBER: _ClassVar[int]
    JOB_DATA_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    event_type: EventType
    req_data: bytes
    job_data: bytes
    batch_id: int
    idempotency_key: str
    def __init__(self, event_type: _Optional[_Union[EventType, str]] = ..., req_data: _Optional[bytes] = ..., job_data: _Optional[bytes] = ..., batch_id: _Optional[int] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class TriggerEventResponse(_message.Message):
    __slots__ = ("batch_id", "status", "created")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    status: str
    created: bool
    def __init__(self, batch_id: _Optional[int] = ..., status: _Optional[str] = ..., created: _Optional[bool] = ...) -> None: ...
