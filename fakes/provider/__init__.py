"""A hosted endpoint, simulated: rate limits as real ones have them, their headers and their 429s.

`windows` and `headers` are pure and take any clock; `server` is the HTTP side. What it answers are random words.
"""
