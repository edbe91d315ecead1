"""Not more calls at once, nor in a minute, than an endpoint is to bear."""

import asyncio

MINUTE_S = 60.0


class Pace:
    """Lets callers through one after another, evenly, and only so many at a time."""

    def __init__(self, concurrency: int, requests_per_minute: float | None) -> None:
        self.places = asyncio.Semaphore(concurrency)
        """Held by the calls that are under way."""
        self._gap_s = MINUTE_S / requests_per_minute if requests_per_minute else 0.0
        self._next_s = 0.0

    async def turn(self) -> None:
        """Wait until the next request may begin."""
        now_s = asyncio.get_running_loop().time()
        starts_s = max(now_s, self._next_s)
        self._next_s = starts_s + self._gap_s
        await asyncio.sleep(starts_s - now_s)
