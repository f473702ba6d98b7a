"""The same scheduler, engines and agents on a virtual clock: what a policy does to a pool, in seconds instead of hours.

Real are the scheduler's core (`scheduler.core.decide`) and the engines' batching and cache (`fakes.engine.batch`).
Simulated are time, the network and the agents. The same seed gives the same figures on every machine.
Read `world` next.
"""
