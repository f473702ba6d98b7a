"""The dataplane: a streaming HTTP proxy that knows runs. Start reading at `proxy`."""
