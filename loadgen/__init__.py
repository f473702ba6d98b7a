"""Closed-loop load: agents that keep their own loop, each working on one run after another.

`workload` says what a run is (pure), `traces` reads recorded ones (pure), `driver` performs it, `reply` reads a
streamed answer (pure), `record` counts (pure), `report` turns counts into figures and tables (pure).
"""
