"""RabbitMQ: runs in quorum queues, one for each lane and level; status by request and reply."""
