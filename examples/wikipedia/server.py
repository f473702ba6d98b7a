"""An MCP tool server for Wikipedia: search, and the summary of a page. Read-only, over standard input and output.

    python examples/wikipedia/server.py

WIKIPEDIA_URL (https://en.wikipedia.org): another language, or another wiki
WIKIPEDIA_CONTACT: your mail address or web page, which Wikipedia asks every client to send along

Wikipedia limits how often it is asked. Requests go one after the other; one that is refused for now (429, 5xx) is
repeated after the time that the answer names, else after a growing, jittered pause, three times at most.
"""

import email.utils
import html
import os
import random
import re
import time
import urllib.parse
from asyncio import Lock, run, sleep
from typing import Any

import httpx2
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

BASE_URL = os.environ.get("WIKIPEDIA_URL", "https://en.wikipedia.org").rstrip("/")
USER_AGENT = f"luftpause-wikipedia-example/0.1 ({os.environ.get('WIKIPEDIA_CONTACT', 'no contact given')}) httpx2"
TRIES = 4
PAUSE_S = 0.5
"""Before the second try; doubled before each further one, plus or minus half."""
PAUSE_S_MAX = 15.0
"""Longer pauses are not waited for: the model reads how long it would be."""
TRANSIENT = {429, 500, 502, 503, 504}
READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=True)

server = MCPServer("wikipedia", version="0.1", log_level="WARNING")
one_at_a_time = Lock()


def retry_after_s(value: str | None, now: float) -> float | None:
    """The pause, in seconds, that a `Retry-After` header names, as a number or a date; None if it names none."""
    if value is None:
        return None
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value.strip()):
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except ValueError:
        return None


async def get(path: str, **query: str | int) -> dict[str, Any] | None:
    """The JSON at `path`, or None where there is nothing. Raises ToolError when Wikipedia does not answer."""
    async with (
        one_at_a_time,
        httpx2.AsyncClient(
            base_url=BASE_URL, headers={"User-Agent": USER_AGENT}, timeout=10.0, follow_redirects=True
        ) as client,
    ):
        problem = ""
        for attempt in range(TRIES):
            pause_s: float | None = None
            try:
                response = await client.get(path, params=query)
            except httpx2.TransportError as error:
                problem = str(error) or type(error).__name__
            else:
                if response.status_code == 404:
                    return None
                if response.is_success:
                    return decoded(response)
                problem = f"it answered {response.status_code}"
                if response.status_code not in TRANSIENT:
                    break
                pause_s = retry_after_s(response.headers.get("retry-after"), time.time())
            if pause_s is not None and pause_s > PAUSE_S_MAX:
                raise ToolError(f"Wikipedia asks to wait {pause_s:.0f} s before the next request")
            if attempt + 1 < TRIES:
                # The jitter spreads those who were told the same moment; nobody comes before it.
                pause_s = PAUSE_S * 2**attempt if pause_s is None else pause_s
                await sleep(pause_s + random.uniform(0, 0.5) * max(pause_s, PAUSE_S))
        raise ToolError(f"Wikipedia does not answer: {problem}")


def decoded(response: httpx2.Response) -> dict[str, Any]:
    """The JSON object of an answer. Raises ToolError if it is none."""
    try:
        value = response.json()
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ToolError("Wikipedia's answer cannot be read")
    return value


@server.tool(annotations=READ_ONLY, structured_output=False)
async def search(query: str, limit: int = 5) -> str:
    """Finds Wikipedia pages: their titles, each with a line about it. `limit`: 1 to 20 pages."""
    found = await get("/w/rest.php/v1/search/page", q=query, limit=min(max(limit, 1), 20))
    lines = []
    for page in (found or {}).get("pages") or ():
        excerpt = html.unescape(re.sub(r"<[^>]*>", "", page.get("excerpt") or ""))
        lines.append(f"{page['title']}: {page.get('description') or excerpt}")
    return "\n".join(lines) or f"No page matches '{query}'."


@server.tool(annotations=READ_ONLY, structured_output=False)
async def summary(title: str) -> str:
    """The summary of the Wikipedia page of that title (use `search` to find titles)."""
    page = await get("/api/rest_v1/page/summary/" + urllib.parse.quote(title.strip().replace(" ", "_"), safe=""))
    if page is None:
        raise ToolError(f"there is no page '{title}'; search for its title")
    link = ((page.get("content_urls") or {}).get("desktop") or {}).get("page", "")
    return "\n".join(part for part in (page.get("title"), page.get("extract"), link) if part)


if __name__ == "__main__":
    run(server.run_stdio_async())
