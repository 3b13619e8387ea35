"""The command palette: every action with its keys, each theme, and the mouse switch."""

from collections.abc import Callable, Iterator

from textual.command import DiscoveryHit, Hit, Hits, Provider

from offtop import paths
from offtop.ui.kit import theme
from offtop.ui.kit.keys import KEYS, shown


class Actions(Provider):
    """All commands of the palette."""

    def _every(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        chosen = getattr(self.app, "chosen_keys", {})
        says = ""
        for row in KEYS:
            says = row.says or says
            if row.action != "command_palette":
                keys = " ".join(shown(key) for key in chosen.get(row.id, row.keys).split(","))
                yield f"{row.id.replace('_', ' ')}  {keys}", says, self._runs(row.action)
        for name in paths.theme_names():
            yield f"theme {name}", theme.says(name), self._runs(f"theme('{name}')")
        yield "mouse", "let the terminal select text, or give the mouse to offtop", self._runs("mouse")

    def _runs(self, action: str) -> Callable[[], object]:
        async def run() -> None:
            await self.app.run_action(action)

        return run

    async def discover(self) -> Hits:
        for name, says, run in self._every():
            yield DiscoveryHit(name, run, help=says)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, says, run in self._every():
            score = max(matcher.match(name), matcher.match(says) * 0.9)
            if score > 0:
                yield Hit(score, matcher.highlight(name), run, help=says)
