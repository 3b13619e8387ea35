"""The key p pins a row, and F has the kernel measure nothing else."""

from offtop.errors import KernelError
from offtop.model.values.snapshot import Filters
from tests.ui.scripted import ScriptedSource
from tests.ui.shown import asynchronous, screen, shown


@asynchronous
async def test_pinned_row_is_on_top_and_p_unpins_it() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("tab", "end", "p")
        assert app.view.pin == 977
        assert app.picture is not None
        assert app.picture.listed.ranking.rows[0].key == 977
        assert any(line.startswith(">*") and "postgres" in line for line in screen(app))
        await pilot.press("p")
        assert app.view.pin is None


@asynchronous
async def test_p_without_a_row_explains_itself() -> None:
    async with shown(ScriptedSource()) as (app, pilot):
        await pilot.press("p")
        assert "p pins a program, process, thread or cgroup: TAB goes to their list" in screen(app)


@asynchronous
async def test_f_restricts_the_kernel_filter_to_the_pin_and_lifts_it_again() -> None:
    source = ScriptedSource()
    async with shown(source) as (app, pilot):
        await pilot.press("F")
        assert (source.filters, app.view.narrowed) == (Filters(), False)
        assert "nothing is pinned" in screen(app)[-2]
        await pilot.press("tab", "p", "F")
        assert source.filters == Filters(pids=(4242,))
        await pilot.press("F")
        assert source.filters == Filters()
        await pilot.press("F", "p")
        assert (source.filters, app.view.pin, app.view.narrowed) == (Filters(), None, False)
        await pilot.press("H", "tab", "tab", "p", "F")
        assert source.filters == Filters(tids=(4268,))


@asynchronous
async def test_refusal_of_the_source_is_shown_and_changes_nothing() -> None:
    source = ScriptedSource()
    async with shown(source) as (app, pilot):
        source.refuses = KernelError("this is a recording: it cannot be filtered anew")
        await pilot.press("tab", "p", "F")
        assert not app.view.narrowed
        assert "this is a recording: it cannot be filtered anew" in screen(app)
