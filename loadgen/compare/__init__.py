"""Comparisons of routers under the same load: `./luftpause bench flood`, `routing`, `fairness` and `light`.

`arms` says how each router is started (pure), `processes` and `engines` do it, `router` is the plain one, `contest`
lets them take turns, `figures` computes the medians and checks the bars (pure), `table` and `picture` show them (pure).
"""
