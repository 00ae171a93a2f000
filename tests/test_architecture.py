"""Promises about the package as a whole: rooms import one way, start-up is light, public names are listed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import deixis
from deixis.training.kind import Kind
from deixis.training.kinds import KINDS, kind_of
from deixis.training.recipe import FitRecipe

PACKAGE = Path(deixis.__file__).parent
#: From DESIGN: a room may import only from rooms before it. `errors` and `files` are the ground under all of them.
ROOMS = (
    "errors",
    "files",
    "corpus",
    "text",
    "vision",
    "features",
    "model",
    "adapters",
    "metrics",
    "training",
    "papers",
    "base",
    "loading",
    "search",
    "annotation",
    "figures",
    "web",
    "cli",
)
#: Rooms that use models and know none of their classes.
USERS_OF_MODELS = ("search", "annotation", "figures", "web", "cli")
#: Commands that make models, and one that shows what one paper's training found.
INSIDE_MODELS = {
    "cli/export_command.py": {"base"},
    "cli/finetune.py": {"base"},
    "cli/gallery.py": {"papers"},
}
HEAVY = ("torch", "cv2", "spacy", "torchvision", "timm", "sklearn", "scipy", "numpy", "PIL")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def room_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """Rooms that a file imports anywhere, inside functions too; type-checking imports do not count."""
    tree = parsed(path)
    skipped = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    names: list[str] = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("deixis.")}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_import_only_from_rooms_before_them(path: Path) -> None:
    room = room_of(path)
    if room in ("__init__", "__main__"):
        return
    assert room in ROOMS, f"{room} is not in the list of rooms"
    later = {name for name in imported_rooms(path) if name in ROOMS and ROOMS.index(name) > ROOMS.index(room)}
    assert not later, f"{path.name} in room {room} imports from {sorted(later)}, which come after it"


def named_modules(path: Path) -> set[str]:
    """Modules of the package that a file imports or names in a string, type-checking imports included."""
    tree = parsed(path)
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            names.add(node.value)
    return {name for name in names if name.startswith("deixis.")}


def test_only_the_list_of_kinds_names_papers_and_base_before_them() -> None:
    """Metrics and training know no paper and no network of deixis-base; `kinds.py` lists their classes by name."""
    before = ROOMS[: ROOMS.index("papers")]
    naming = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if room_of(path) in before
        and any(name.startswith(("deixis.papers", "deixis.base")) for name in named_modules(path))
    }
    assert naming == {"training/kinds.py"}


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in (PACKAGE / "papers").glob("*/__init__.py")))
def test_a_paper_imports_no_other_paper(folder: str) -> None:
    others = {
        name.split(".")[2]
        for path in (PACKAGE / "papers" / folder).rglob("*.py")
        for name in named_modules(path)
        if name.startswith("deixis.papers.")
    }
    assert others <= {folder}


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(PACKAGE.rglob("*.py")) if room_of(path) in USERS_OF_MODELS],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_models_come_from_one_door(path: Path) -> None:
    """Search, figures, pages and commands get models from `load_model`, and know no paper and no network."""
    inside = imported_rooms(path) & {"papers", "base"}
    inside -= INSIDE_MODELS.get(str(path.relative_to(PACKAGE)), set())
    assert not inside, f"{path.name} imports from {sorted(inside)}; get models from deixis.loading.load_model"


@pytest.mark.parametrize(
    "code", ["import deixis", "from deixis.cli import main; sys.argv = ['deixis', '--help']; main()"]
)
def test_start_up_imports_nothing_heavy(code: str) -> None:
    tell = f"sys.stderr.write(str([name for name in {HEAVY!r} if name in sys.modules]))"
    probe = f"import sys, atexit\natexit.register(lambda: {tell})"
    done = subprocess.run([sys.executable, "-c", f"{probe}\n{code}"], capture_output=True, text=True, check=True)
    assert done.stderr == "[]"
    assert ("Usage" in done.stdout) == ("--help" in code)


@pytest.mark.parametrize("arguments", [["-c", "import deixis"], ["-m", "deixis", "--help"]])
def test_start_up_is_fast(arguments: list[str]) -> None:
    # Processor time, and the best of several: what start-up costs, not what else the machine was doing.
    probe = f"import subprocess, sys, resource; subprocess.run([sys.executable, *{arguments!r}], capture_output=True)"
    report = "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"

    def seconds() -> float:
        done = subprocess.run([sys.executable, "-c", f"{probe}; {report}"], check=True, capture_output=True, text=True)
        return float(done.stdout)

    assert min(seconds() for _ in range(5)) < 0.4


def test_a_task_imports_little_of_the_package() -> None:
    """A reader who follows `deixis train` from a task meets few files: no protocols, no vision, no model for search."""
    code = "import sys, deixis.papers.two_branch.task; print(*[n for n in sys.modules if n[:7] == 'deixis.'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert len(modules) <= 35
    assert {name.split(".")[1] for name in modules}.isdisjoint({"adapters", "model", "search"})


def test_no_module_name_occurs_twice() -> None:
    """Papers share names with each other, since each has its network and loss, and with `model.py` and `task.py`."""
    names = Counter(
        path.parent.name if path.stem == "__init__" else path.stem
        for path in PACKAGE.rglob("*.py")
        if "papers" not in path.relative_to(PACKAGE).parts[:-1]
    )
    assert [name for name, count in names.items() if count > 1] == []
    shared = {path.stem for path in PACKAGE.glob("papers/*/*.py")} & set(names)
    assert shared == {"__init__", "model", "task"} & shared
    inside = Counter(path.stem for path in PACKAGE.glob("papers/*/**/*.py"))
    assert {name for name, count in inside.items() if count > 1} == {
        *("__init__", "network", "loss", "task", "model", "reference")
    }


def test_locals_are_named_after_what_they_hold() -> None:
    """`found`, `own` and the like say how a value came about, not what it is."""
    pronouns = {"found", "own", "told", "kept", "each", "said", "mine", "ours", "theirs"}
    places = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for function in ast.walk(parsed(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
        if (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in pronouns)
        or (isinstance(node, ast.arg) and node.arg in pronouns)
    ]
    assert places == []


def test_the_page_about_architecture_names_rooms_and_files_that_exist() -> None:
    page = PACKAGE.parent.parent / "ARCHITECTURE.md"
    if not page.exists():
        pytest.skip("the page is in the checkout")
    text = page.read_text("utf-8")
    first_column = [line.split("|")[1] for line in text.split("## How things travel")[0].splitlines() if "|" in line]
    rooms = [name.removesuffix(".py").strip("/") for cell in first_column for name in re.findall(r"^ `(.+)` $", cell)]
    assert tuple(name for part in rooms for name in part.split("`, `")) == ROOMS
    files = set(re.findall(r"`([\w/]+\.py)`", text)) - {"tests/test_architecture.py"}
    assert len(files) > 40
    missing = [name for name in files if not any(path.match(name) for path in PACKAGE.rglob("*.py"))]
    assert missing == []
    assert {name for name in files if name.startswith("cli/") and f"`{name}`" in text.split("The papers:")[0]} | {
        f"cli/{command}.py" for command in ("finetune", "export_command")
    } == set(INSIDE_MODELS)


def test_training_begins_at_the_one_door() -> None:
    """Nobody but the leak guard takes the split `train`, and whatever learns asks for a `TrainingSet`."""
    takers = [
        path
        for folder in (PACKAGE, PACKAGE.parent.parent / "benchmarks")
        for path in folder.rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "split"
        and any(isinstance(word, ast.Constant) and word.value == "train" for word in node.args)
    ]
    assert takers == []
    learners = [
        *(path.partition(":")[0] for path in KINDS.values()),
        *(f"deixis.training.tools.{name}_training" for name in ("chunker", "entity_types", "proposer")),
    ]
    for module in learners:
        text = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
        assert "training: TrainingSet" in text or "training_set(corpus)" in text, module


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_training_resolves_to_its_class(name: str) -> None:
    kind = kind_of(name)
    assert isinstance(kind, Kind)
    assert issubclass(kind.recipe_type, FitRecipe)


def asks_for_the_kind(node: ast.AST) -> bool:
    """`recipe.kind == "cca"`, `recipe["kind"] in ("cca", "joint")`, `getattr(recipe, "regions", None)` and the like."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
        asked, name = node.args[:2]
        return isinstance(name, ast.Constant) and ast.unparse(asked).endswith(("recipe", "kind"))
    if not isinstance(node, ast.Compare) or not ast.unparse(node.left).endswith((".kind", "['kind']")):
        return False
    return any(isinstance(part, ast.Constant) and part.value in KINDS for part in ast.walk(node))


@pytest.mark.parametrize(
    ("code", "asks"),
    [
        ("recipe.kind == 'cca'", True),
        ("recipe['kind'] != 'phrases'", True),
        ("self.recipe.kind in ('cca', 'joint')", True),
        ("getattr(recipe, 'regions', None)", True),
        ("hasattr(kind, 'share')", True),
        ("text.kind == 'tokens'", False),
        ("getattr(recipe, name)", False),
    ],
)
def test_asking_for_a_kind_is_noticed(code: str, asks: bool) -> None:
    assert asks_for_the_kind(ast.parse(code, mode="eval").body) == asks


def test_nobody_asks_which_kind_a_recipe_is_of() -> None:
    """What differs between kinds is a method of `Kind`."""
    places = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.expr) and asks_for_the_kind(node)
    ]
    assert places == []


def asks_for_the_class(node: ast.AST) -> set[str]:
    """The classes that `isinstance(…, classes)` names; of `getattr(model, …)`, the word `getattr`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return set()
    if node.func.id in ("getattr", "hasattr") and ast.unparse(node.args[0]) in ("model", "loaded", "self.model"):
        return {node.func.id}
    if node.func.id != "isinstance":
        return set()
    return {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}


def test_nobody_asks_of_which_class_a_model_is() -> None:
    """What differs between models is a method of `Model`. A folder knows its own classes, `model.py` every object."""
    folder_of = dict.fromkeys(("Model", "getattr", "hasattr"), PACKAGE / "model.py")
    classes = [
        (node, path)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
    ]
    for _ in range(6):  # a class is found once its base is: no chain of base classes is longer
        for node, path in classes:
            if any(isinstance(base, ast.Name) and base.id in folder_of for base in node.bases):
                folder_of.setdefault(node.name, path.parent)
    assert {"SearchModel", "TwoBranchModel", "CaptionerModel", "BundleModel"} <= set(folder_of)
    places = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {name}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.expr)
        for name in asks_for_the_class(node)
        if name in folder_of and not path.is_relative_to(folder_of[name])
    ]
    assert places == []


#: The public interface: a name is added or removed on purpose.
PUBLIC_NAMES = sorted(
    """
    open_corpus write_corpus join concat cut Corpus Image Caption Phrase Chain Box training_set TrainingSet FeatureStore
    load_model Model train evaluate Result metrics SearchEngine
    NormalizedCCA TwoBranchEmbedding SimilarityNetwork ranking_loss HMLSTM contrastive_loss ConceptsOrderNetwork
    structured_ranking AlignmentNetwork max_margin Captioner
    DeixisError InputError LeakError CannotError __version__
    """.split()  # noqa: SIM905
)


def test_public_names_are_these_and_exist() -> None:
    assert sorted(deixis.__all__) == PUBLIC_NAMES
    assert dir(deixis) == PUBLIC_NAMES
    for name in PUBLIC_NAMES:
        assert getattr(deixis, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = deixis.nonsense
