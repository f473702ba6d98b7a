"""Rate limits seen before they are hit: windows, reservations, prediction, spend. Pure, and nothing of the rest of the
core is imported; `scheduler.limited` is where the core asks."""
