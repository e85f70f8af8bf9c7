"""Store of sessions on Redis or Valkey, one server or a cluster."""
