"""What `file.py[:name]` and `module[:name]` mean: a program, and the durable function in it that was asked for."""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.engine.app import App
from holdfast.engine.function import Durable

_FORMS: Final = "A target is file.py, file.py:name, module or module:name."
Function = Durable[Any, ...]


@dataclass(frozen=True)
class Target:
    """A durable function and the app that it belongs to."""

    app: App
    function: Function
    served_as: str
    """What a worker is to be given that serves the whole app: the function may start others of it."""


def load_target(text: str) -> Target:
    """Import what `text` names and find its durable function.

    Raises:
        InvalidInput: it cannot be imported, or it is not clear which function is meant; the hint lists what is there.
    """
    place, name = _split(text)
    module = _import(place)
    app, functions = _app_of(module, place, name)
    if name is not None:
        meant = functions.get(name) or vars(module).get(name)
        if isinstance(meant, Durable):
            return Target(app, meant, _whole(module, place, app) if meant in functions.values() else text)
        if not isinstance(meant, App):
            raise _refused(f"{place} has no durable function {name!r}", _listed(place, functions))
    if not functions:
        raise _refused(f"{place} holds no durable function", "Decorate an `async def` function with @hf.durable.")
    if len(functions) > 1:
        raise _refused(f"{place} holds {len(functions)} durable functions", _listed(place, functions))
    return Target(app, next(iter(functions.values())), text)


def load_app(texts: Sequence[str], only: Sequence[str] = ()) -> App:
    """Import what `texts` name and return one app of it all; `only` leaves out every other function.

    Raises:
        InvalidInput: one cannot be imported, or their apps differ in more than their functions.
    """
    modules = {place: _import(place) for place in dict.fromkeys(_split(text)[0] for text in texts)}
    parts: dict[int, Function] = {}
    apps: list[App] = []
    for place, name in map(_split, texts):
        app, functions = _app_of(modules[place], place, name)
        named = vars(modules[place]).get(name) if name is not None else app
        if name is not None and not isinstance(named, App):
            one = functions.get(name) or named
            if not isinstance(one, Durable):
                raise _refused(f"{place} has no durable function {name!r}", _listed(place, functions))
            functions = {one.name: one}
        if not functions:
            raise _refused(f"{place} holds no durable function", "Decorate an `async def` function with @hf.durable.")
        parts |= {id(function): function for function in functions.values()}
        apps.append(app)
    kept = [function for function in parts.values() if not only or function.name in only]
    unknown = sorted(set(only) - {function.name for function in kept})
    if unknown:
        there = ", ".join(sorted(function.name for function in parts.values()))
        raise _refused(f"no target has {', '.join(map(repr, unknown))}", f"There is: {there}.")
    first = apps[0]
    if any((app.deps, app.version, app.secrets) != (first.deps, first.version, first.secrets) for app in apps):
        raise _refused(
            "the targets belong to apps that differ in more than their functions", "Start a worker for each."
        )
    whole = App(*kept, deps=first.deps, version=first.version, secrets=first.secrets)
    for schedule in (schedule for app in apps for schedule in app.schedules.values()):
        if whole.get(schedule.function.name) is schedule.function:
            whole.add_schedule(schedule)
    return whole


def _split(text: str) -> tuple[str, str | None]:
    stem, suffix, name = text.partition(".py:")
    place = f"{stem}.py" if suffix else text
    if not suffix:
        place, _, name = text.partition(":")
    return place, name or None


def _app_of(module: ModuleType, place: str, name: str | None) -> tuple[App, Mapping[str, Function]]:
    """Return the app of a module, or one made of its globals, with its functions by name."""
    known = vars(module)
    apps = {id(value): value for value in known.values() if isinstance(value, App)}
    named = known.get(name) if name is not None else None
    if isinstance(named, App):
        app = named
    elif len(apps) > 1:
        app = _app_that_has(name, known, place)
    elif apps:
        app = next(iter(apps.values()))
    else:
        durables = {id(value): value for value in known.values() if isinstance(value, Durable)}
        app = App(*durables.values())
    functions: dict[str, Function] = {}
    for known_as in app.serves():
        function = app.get(known_as)
        assert function is not None
        functions[known_as] = function
    return app, functions


def _whole(module: ModuleType, place: str, app: App) -> str:
    """Return the target that means a whole app, which is named where its module has several."""
    apps = {id(value): name for name, value in vars(module).items() if isinstance(value, App)}
    return f"{place}:{apps[id(app)]}" if len(apps) > 1 else place


def _app_that_has(name: str | None, known: Mapping[str, Any], place: str) -> App:
    """Return the one of several apps that has a function of that name.

    Raises:
        InvalidInput: none has it, or more than one.
    """
    apps = {key: value for key, value in known.items() if isinstance(value, App)}
    having = {key: app for key, app in apps.items() if name is not None and _has(app, name, known.get(name))}
    if len({id(app) for app in having.values()}) == 1:
        return next(iter(having.values()))
    if having:
        hint = "Each app may have other dependencies: leave it in one, or give one of them a name of its own."
        raise _refused(f"{name} is in several apps of {place}: {', '.join(sorted(having))}", hint)
    there = dict.fromkeys([*sorted(apps), *sorted(one for app in apps.values() for one in app.names)])
    told = f"{place} holds {len({id(app) for app in apps.values()})} apps"
    raise _refused(
        f"{told}, and none has {name!r}" if name is not None else told,
        "Name one, or a function of one:\n" + "\n".join(f"  {place}:{one}" for one in there),
    )


def _has(app: App, name: str, known: Any) -> bool:
    """Say whether an app has a function: by its own name, or by the one that its module knows it by."""
    return app.get(name) is not None or any(app.get(one) is known for one in app.names)


def _listed(place: str, functions: Mapping[str, Function]) -> str:
    if not functions:
        return "It holds none at all: decorate an `async def` function with @hf.durable."
    return "Name one of these:\n" + "\n".join(f"  {place}:{name}" for name in sorted(functions))


def _import(place: str) -> ModuleType:
    is_file = place.endswith(".py") or os.sep in place
    try:
        return _import_file(place) if is_file else _import_module(place)
    except HoldfastError:
        raise
    except (Exception, SystemExit) as error:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        raise _refused(
            f"{place} could not be loaded: {type(error).__name__}: {said}{_where(error)}",
            "Mend the program; `holdfast run` imports it as `import` would.",
        ) from error


def _import_file(place: str) -> ModuleType:
    path = Path(place).absolute()
    if not path.is_file():
        raise _refused(f"there is no file {place}", _FORMS)
    # As `python file.py` does: the program's own folder comes first, so that it finds its neighbours.
    sys.path.insert(0, str(path.parent))
    stem = path.stem
    name = stem if stem not in sys.modules and stem not in sys.stdlib_module_names else f"_{stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise _refused(f"{place} is not a Python file", _FORMS)
    spec.loader = _Script(name, str(path))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Script(importlib.machinery.SourceFileLoader):
    """Compiles a program each time, as `python file.py` does: what was kept is told from an edit only by the second."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _import_module(place: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        raise _refused(f"there is no module {place}", f"For a file, write its ending: {place}.py") from None
    except (TypeError, ValueError):
        raise _refused(f"{place!r} is not a module", _FORMS) from None


def _where(error: BaseException) -> str:
    """Return the place in the program that raised, without the import machinery around it."""
    if isinstance(error, SyntaxError):
        return f" ({Path(error.filename or '').name}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and not frame.filename.startswith("<")]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _refused(message: str, hint: str) -> InvalidInput:
    error = InvalidInput(message)
    error.hint = hint
    return error
