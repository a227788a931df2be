"""An edit that changes what a step computes stops the resume; the final code, run again, ends like a clean run."""

from __future__ import annotations

import os
import py_compile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from flowckpt.core.system import functions
from tests.forked import run_module

FLOW = """
from flowckpt import step, workflow
{body}

@workflow
def flow():
    return (yield step("f").python(f, {argument}).checkpoint())
"""
DEFAULTS = "class C:\n    lr = 1\nCFG = {}\ncfg = C()\nOTHER = [1]\n"
CLASS = "from dataclasses import dataclass\nimport other\n@dataclass\nclass Config:\n    epochs: int = 2\n"
ROW = "import dataclasses\nclass Base:\n    pass\n@dataclasses.dataclass\nclass Row(Base):\n    a: int = 1\n    b: int = 2\ndef f(r):\n    return [str(r), *dataclasses.astuple(r)]\n"
TEXT = "\n    def __str__(self): return 'row'\n"
MODEL = "import pydantic, typing\ndef cents(v): return f'{v}c'\nMoney = typing.Annotated[int, pydantic.PlainSerializer(cents)]\nclass Event(pydantic.BaseModel):\n    card_id: str = '4'\n    price: {type} = 5\ndef f(e):\n    return e.model_dump_json(by_alias=True)\n"
EVENT = MODEL.replace("{type}", "int")
OTHER = "def area(self):\n    return self.epochs * 3\ndef plain(g):\n    def inner(*a):\n        return g(*a)\n    return inner\n"

HOLDING = "def make(agg):\n    def f(rows):\n        return agg(rows)\n    return f\nf = make(min)\n"
SCALING = "def make(rate):\n    def f(x):\n        return x * (rate or 1)\n    return f\nf = make(None)\n"
COMPOSING = "def scale(x): return x * 10\ndef shift(x): return x + 1\ndef make(first, second):\n    def f(x):\n        return second(first(x))\n    return f\nf = make(scale, shift)\n"
CHAINING = "FS = [lambda x: x + 1, lambda x: x * 10]\ndef f(fs):\n    x = 3\n    for each in fs:\n        x = each(x)\n    return x\n"

MAKING = "import dataclasses\ndef make(k):\n    @dataclasses.dataclass\n    class M:\n        a: int = 2\n        @classmethod\n        def of(cls, a):\n            return a * k\n        def f(self, n):\n            return n * self.a * k\n    return M\nM = make(3)\n"
LIMITED = "def make(k):\n    class M:\n        limit = k\n        @classmethod\n        def f(cls, n):\n            return n * cls.limit\n    return M\n"

USING = "def f(x):\n    return x * g(x)\n"
CHOOSING = "from settings import NEW\nif NEW:\n    from new import g\nelse:\n    from old import g\n" + USING
TARIFFS = {
    "new.py": "def g(x):\n    return 3\nRATE = 3\n",
    "old.py": "def g(x):\n    return 4\nRATE = 4\n",
    "settings.py": "NEW = True\n",
}
TRYING = (
    "try:\n    import nowhere\n    FAST = True\nexcept ImportError:\n    FAST = False\ndef f(x):\n    return FAST\n"
)
CATCHING = (
    "try:\n    R = int('x')\nexcept ValueError:\n    R = 3\nexcept Exception:\n    R = 4\ndef f(x):\n    return x * R\n"
)
YEARS = {
    "rates.py": "OLD, NEW = 3, 4\ndef of_2023(x):\n    return 3\ndef of_2024(x):\n    return 4\nclass Old:\n    rate = 3\nclass New:\n    rate = 4\n",
    "checks.py": "from rates import *\ndef check(x):\n    assert of_2023(x) < of_2024(x) and OLD < NEW and Old.rate < New.rate\n",
}
ALIASED = "from checks import check\nfrom rates import of_2023 as g\ndef f(x):\n    check(x)\n    return x * g(x)\n"
SAME_NAMES = {
    "new.py": "def g(x):\n    return 3\n",
    "old.py": "def g(x):\n    return 4\n",
    "checks.py": "import new, old\ndef a_check(x):\n    assert new.g(x) < old.g(x)\n",
}

EDITS = {  # the body, what is edited and how, the argument, other files
    "the flag of an import": (CHOOSING, "NEW = True", "NEW = False", "10", TARIFFS),
    "the condition of an import": (CHOOSING.replace("if NEW", "import sys\nif sys.version_info > (3, 1)"), "(3, 1)", "(30, 1)", "10", TARIFFS),
    "the condition of an import in a package": ("from pk import g\n" + USING, "PATH", "NO_PATH_AT_ALL", "10", {"pk/__init__.py": "import os\nif os.environ.get('PATH'):\n    from .new import g\nelse:\n    from .old import g\n", "pk/new.py": TARIFFS["new.py"], "pk/old.py": TARIFFS["old.py"]}),
    "the flag of a star import": ("from settings import NEW\nRATE = 2\nif NEW:\n    from new import *\ndef f(x):\n    return x * RATE\n", "NEW = True", "NEW = False", "10", TARIFFS),
    "the flag of an import of the standard library": ("NEW = True\nif NEW:\n    from math import floor as g\nelse:\n    from math import ceil as g\ndef f(x):\n    return g(x)\n", "= True", "= False", "1.5", {}),
    "an import that becomes the fallback": ("try:\n    from math import exp as g\nexcept ImportError:\n    from new import g\n" + USING, "try:\n    from math import exp as g\nexcept ImportError:\n    from new import g\n", "try:\n    from new import g\nexcept ImportError:\n    from math import exp as g\n", "10", TARIFFS),
    "the import that is tried": (TRYING, "nowhere", "json", "10", {}),
    "the import that is tried before another one": ("try:\n    import nowhere\n    from new import g\nexcept ImportError:\n    from old import g\n" + USING, "nowhere", "json", "10", TARIFFS),
    "the import that is tried before an else": ("try:\n    import nowhere\nexcept ImportError:\n    R = 3\nelse:\n    R = 4\ndef f(x):\n    return x * R\n", "nowhere", "json", "10", {}),
    "a constant that a tried statement reads": ("LIMIT = 3\nR = 1\ntry:\n    assert LIMIT < 5\n    R = 2\nexcept AssertionError:\n    R = 9\ndef f(x):\n    return x * R\n", "LIMIT = 3", "LIMIT = 7", "10", {}),
    "the class of a handled error": (CATCHING, "ValueError", "KeyError", "10", {}),
    "the class of an error that another handler handles": (CATCHING.replace("R = 3", "pass").replace("try:", "R = 2\ntry:"), "ValueError", "KeyError", "10", {}),
    "a line that moves from an if to its else": ("NEW = True\nR = 3\nif NEW:\n    NAME = 'new'\n    R = 4\nelse:\n    NAME = 'old'\ndef f(x):\n    return x * R\n", "    R = 4\nelse:\n    NAME = 'old'\n", "else:\n    NAME = 'old'\n    R = 4\n", "10", {}),
    "a line that moves from a handler to the else": ("R = 3\ntry:\n    int('x')\nexcept ValueError:\n    R = 4\ndef f(x):\n    return x * R\n", "    R = 4\n", "    pass\nelse:\n    R = 4\n", "10", {}),
    "the function that an alias stands for": (ALIASED, "of_2023 as g", "of_2024 as g", "10", YEARS),
    "the function that an alias of a package stands for": (ALIASED.replace("rates import of_2023 as", "pk import"), "of_2023 as g", "of_2024 as g", "10", {**YEARS, "pk/__init__.py": "from rates import of_2023 as g\n"}),
    "the functions that two aliases stand for": ("from rates import of_2023 as a, of_2024 as b\ndef f(x):\n    return a(x) - b(x)\n", "of_2023 as a, of_2024 as b", "of_2024 as a, of_2023 as b", "10", YEARS),
    "the constants that two aliases stand for": ("from rates import OLD as a, NEW as b\ndef f(x):\n    return a - b\n", "OLD as a, NEW as b", "NEW as a, OLD as b", "10", YEARS),
    "the class that an alias stands for": (ALIASED.replace("of_2023 as g", "Old as K").replace("g(x)", "K.rate"), "Old as", "New as", "10", YEARS),
    "the module of a name that several modules have": ("from new import g\nfrom checks import a_check\ndef f(x):\n    a_check(x)\n    return g(x)\n", "from new import g", "from old import g", "10", SAME_NAMES),
    "the module that an alias stands for": ("import new as tariff\nfrom checks import a_check\ndef f(x):\n    a_check(x)\n    return tariff.g(x)\n", "import new as", "import old as", "10", SAME_NAMES),
    "a change that moves above a copy": ("C = {'r': 3}\nM = dict(C)\nC['r'] = 4\ndef f(x):\n    return M\n", "M = dict(C)\nC['r'] = 4\n", "C['r'] = 4\nM = dict(C)\n", "10", {}),
    "a change that moves above the call that copies": ("C = {'r': 3}\ndef copy(): return dict(C)\nM = copy()\nC['r'] = 4\ndef f(x):\n    return M\n", "M = copy()\nC['r'] = 4\n", "C['r'] = 4\nM = copy()\n", "10", {}),
    "a change of an imported value that moves above a copy": ("from other import CFG\nM = dict(CFG)\nCFG['r'] = 4\ndef f(x):\n    return M\n", "M = dict(CFG)\nCFG['r'] = 4\n", "CFG['r'] = 4\nM = dict(CFG)\n", "10", {"other.py": DEFAULTS}),
    "a constant that moves above its use": ("B = 3\nR = B * 10\nB = 4\ndef f(x):\n    return R\n", "R = B * 10\nB = 4\n", "B = 4\nR = B * 10\n", "10", {}),
    "a constant that moves above a default": ("B = 3\ndef f(x, r=B):\n    return x * r\nB = 4\n", "def f(x, r=B):\n    return x * r\nB = 4\n", "B = 4\ndef f(x, r=B):\n    return x * r\n", "10", {}),
    "an import that moves below the definition that replaced it": ("from new import g\ndef g(x):\n    return 2\n" + USING, "from new import g\ndef g(x):\n    return 2\n", "def g(x):\n    return 2\nfrom new import g\n", "10", TARIFFS),
    "a star import that moves below a constant": ("from new import *\nRATE = 2\ndef f(x):\n    return x * RATE\n", "from new import *\nRATE = 2\n", "RATE = 2\nfrom new import *\n", "10", TARIFFS),
    "a constant of a star import below another one": ("RATE = 2\ntry:\n    from new import *\nexcept ImportError:\n    pass\ndef f(x):\n    return x * RATE\n", "RATE = 3", "RATE = 4", "10", TARIFFS),
    "the values of a dictionary in a loop": ("M = {'a': {}}\nfor k, m in M.items():\n    m['r'] = 3\ndef f(x):\n    return M\n", "= 3", "= 4", "10", {}),
    "the numbered elements in nested loops": ("M = [[{}]]\nfor i, row in enumerate(M):\n    for m in row:\n        m['r'] = 3\ndef f(x):\n    return M\n", "= 3", "= 4", "10", {}),
    "several values in a loop": ("A, B = {}, {}\nfor m in (A, B):\n    m['r'] = 3\ndef f(x):\n    return A\n", "= 3", "= 4", "10", {}),
    "a part under another name": ("C = {'train': {}}\nT: dict = C['train']\nT['lr'] = 3\ndef f(x):\n    return C\n", "= 3", "= 4", "10", {}),
    "an attribute under another name": ("from other import cfg\nC = cfg.__dict__\nC['lr'] = 3\ndef f(x):\n    return x * cfg.lr\n", "= 3", "= 4", "10", {"other.py": DEFAULTS}),
    "a value that is set and returned": ("C = {}\nR = C.setdefault('r', 3)\ndef f(x):\n    return C\n", ", 3", ", 4", "10", {}),
    "a part or another value": ("C = {'t': {'k': 1}}\nt = C.get('t') or {}\nt['k'] = 3\ndef f(x):\n    return C\n", "= 3", "= 4", "10", {}),
    "a line in another branch of a name with several": ("import sys\nif sys.argv == 3:\n    X = 1\nelif sys.path:\n    X = 2\n    X = X + 1\nelse:\n    X = 3\ndef f(x):\n    return X\n", "    X = X + 1\nelse:\n", "else:\n    X = X + 1\n", "10", {}),
    "a value that is taken out": ("C = {'k': [1, 2, 3]}\n_ = C['k'].pop(1)\ndef f(x):\n    return C\n", "(1)", "(0)", "10", {}),
    "a helper beside a module for another Python": ("try:\n    from new import g\nexcept SyntaxError:\n    from other import g\ndef f(x):\n    return g(x)\n", "x * 3", "x * 4", "10", {"new.py": "def g(: pass\n", "other.py": "def g(x):\n    return x * 3\n"}),
    "a module that cannot be parsed": ("try:\n    import new\nexcept SyntaxError:\n    new = None\ndef f(x):\n    return new and new.R\n", "R = 3 3", "R = 3", "10", {"new.py": "R = 3 3\n"}),
    "a submodule that the function imports": ("def f(x):\n    import pk.a\n    return pk.a.g(x)\n", "x * 3", "x * 4", "10", {"pk/__init__.py": "", "pk/a.py": "def g(x):\n    return x * 3\n"}),
    "a constant of a data class": (CLASS + "    WARMUP = 3\ndef f(c):\n    return c.WARMUP\n", "P = 3", "P = 4", "Config()", {"other.py": ""}),
    "a class variable of a data class": ("import typing\n" + CLASS + "    W: typing.ClassVar[int] = 3\ndef f(c):\n    return c.W\n", "= 3", "= 4", "Config()", {"other.py": ""}),
    "a borrowed method": (CLASS + "    area = other.area\ndef f(c):\n    return c.area()\n", "* 3", "* 4", "Config()", {"other.py": OTHER}),
    "a method in a wrapper of another module": (CLASS + "    @other.plain\n    def area(self):\n        return 3\ndef f(c):\n    return c.area()\n", "return 3\ndef", "return 4\ndef", "Config()", {"other.py": OTHER}),
    "the first method of a data class": (ROW, "b: int = 2\n", "b: int = 2" + TEXT, "Row()", {}),
    "the last method of a data class": (ROW.replace("b: int = 2\n", "b: int = 2" + TEXT), TEXT, "\n", "Row()", {}),
    "the first method of a base": (ROW, "\n    pass\n", TEXT, "Row()", {}),
    "a new base with a method": (ROW.replace("(Base)", "").replace("\n    pass\n", TEXT), "Row:", "Row(Base):", "Row()", {}),
    "the first method in a list": (ROW.replace("f(r)", "f(rs)").replace("    return", "    r = rs[0]\n    return"), "b: int = 2\n", "b: int = 2" + TEXT, "[Row()]", {}),
    "the first method of an enum": ("import enum\nclass Size(enum.Enum):\n    S = 1\ndef f(s):\n    return str(s)\n", "S = 1\n", "S = 1" + TEXT, "Size.S", {}),
    "the first method of a subclass of list": ("class Rows(list):\n    pass\ndef f(rows):\n    return str(rows)\n", "\n    pass\n", TEXT, "Rows([1])", {}),
    "the order of fields": (ROW, "    a: int = 1\n    b: int = 2\n", "    b: int = 2\n    a: int = 1\n", "Row()", {}),
    "an option of a field": (ROW, "b: int = 2", "b: int = dataclasses.field(default=2, repr=False)", "Row()", {}),
    "an option of a data class": (ROW.replace("str(r)", "str(r.__lt__(r))"), "dataclass\n", "dataclass(order=True)\n", "Row()", {}),
    "a field left out by its model": (EVENT, "= '4'", "= pydantic.Field(default='4', exclude=True)", "Event()", {}),
    "the settings of a model": (EVENT, "    price", "    model_config = pydantic.ConfigDict(alias_generator=str.upper)\n    price", "Event()", {}),
    "a serializer of a field": (MODEL.replace("{type}", "typing.Annotated[int, pydantic.PlainSerializer(cents)]"), "{v}c", "{v} EUR", "Event()", {}),
    "a serializer of a named type": (MODEL.replace("{type}", "'Money | None'"), "{v}c", "{v} EUR", "Event()", {}),
    "a serializer in another module": (EVENT.replace("import pydantic", "import other, pydantic").replace("price: int", "price: list[other.Money]").replace("= 5", "= [5]"), "{v}c", "{v} EUR", "Event()", {"other.py": MODEL.partition("class")[0]}),
    "an item of an imported dictionary": ("from other import CFG\nCFG['lr'] = 3\ndef f(x):\n    return x * CFG['lr']\n", "= 3", "= 4", "10", {"other.py": DEFAULTS}),
    "an item by its module": ("import other\nother.CFG['lr'] = 3\ndef f(x):\n    return x * other.CFG['lr']\n", "= 3", "= 4", "10", {"other.py": DEFAULTS}),
    "a method of an imported dictionary": ("from other import CFG\nCFG.update(lr=3)\ndef f(x):\n    return x * CFG['lr']\n", "=3", "=4", "10", {"other.py": DEFAULTS}),
    "an attribute of an imported object": ("from other import cfg\ncfg.lr = 3\ndef f(x):\n    return x * cfg.lr\n", "= 3", "= 4", "10", {"other.py": DEFAULTS}),
    "the elements in a loop": ("M = [{}, {}]\nfor m in M:\n    m['rate'] = 3\ndef f(x):\n    return M\n", "= 3", "= 4", "10", {}),
    "another name": ("T = [1]\nU = T\nU.append(3)\ndef f(x):\n    return T\n", "(3", "(4", "10", {}),
    "a registry by update": ("REG = {}\ndef reg(fn):\n    REG.update({'a': fn})\n    return fn\n@reg\ndef g(x):\n    return x * 3\ndef f(x):\n    return REG['a'](x)\n", "* 3", "* 4", "10", {}),
    "the library function that a closure holds": (HOLDING, "make(min)", "make(max)", "[1, 5]", {}),
    "the class that a closure holds": (HOLDING.replace("make(min)", "make(set)"), "make(set)", "make(frozenset)", "[1, 5]", {}),
    "the module that a closure holds": ("def make():\n    import json as codec\n    def f(x):\n        return len(codec.dumps(x))\n    return f\nf = make()\n", "json", "pickle", "[1]", {}),
    "the library function that a default holds": ("def make():\n    def f(x, agg=min):\n        return agg(x)\n    return f\nf = make()\n", "=min", "=max", "[1, 5]", {}),
    "the library function that a held function holds": (HOLDING.replace("make(min)", "make(make(min))"), "make(min)", "make(max)", "[1, 5]", {}),
    "the value in a closure that was None": (SCALING, "make(None)", "make(3)", "5", {}),
    "the object without content that a closure holds": (HOLDING.replace("f = ", "class A:\n    def __call__(self, x):\n        return 1\nclass B(A):\n    def __call__(self, x):\n        return 2\nf = ").replace("make(min)", "make(A())"), "make(A())", "make(B())", "5", {}),
    "which variable of a closure holds which function": (COMPOSING, "(scale, shift)", "(shift, scale)", "3", {}),
    "which variable of a closure holds which lambda": (COMPOSING.replace("(scale, shift)", "(lambda x: x * 10, lambda x: x + 1)"), "(lambda x: x * 10, lambda x: x + 1)", "(lambda x: x + 1, lambda x: x * 10)", "3", {}),
    "the pattern in a closure": ("import re\ndef make(rx):\n    def f(x):\n        return rx.sub('', x)\n    return f\nf = make(re.compile('a'))\n", "('a')", "('b')", "'ab'", {}),
    "the pattern whose method is the step": ("import functools, re\nf = functools.partial(re.compile('a').sub, '-')\n", "('a')", "('b')", "'ab'", {}),
    "the class of a passed class method": ("import collections\nclass A(collections.UserDict): pass\nclass B(A): pass\ndef f(make):\n    return type(make('ab')).__name__\n", "class B(A): pass\n", "class B(A): pass\nA = B\n", "A.fromkeys", {}),
    "the order of passed lambdas": (CHAINING, "[lambda x: x + 1, lambda x: x * 10]", "[lambda x: x * 10, lambda x: x + 1]", "FS", {}),
    "the order of passed lambdas of one line": (CHAINING.replace("FS =", "a, b = lambda x: x + 1, lambda x: x * 10\nFS =").replace("[lambda x: x + 1, lambda x: x * 10]", "[a, b]"), "[a, b]", "[b, a]", "FS", {}),
    "which key has which lambda": (CHAINING.replace("in fs", "in fs.values()").replace("[lambda x: x + 1, lambda x: x * 10]", "{'u': lambda x: x + 1, 'v': lambda x: x * 10}"), "{'u': lambda x: x + 1, 'v': lambda x: x * 10}", "{'u': lambda x: x * 10, 'v': lambda x: x + 1}", "FS", {}),
    "a variable of a made class whose method is the step": (LIMITED + "f = make(3).f\n", "make(3)", "make(5)", "10", {}),
    "what a class method of a made class holds": (MAKING + "f = M.of\n", "make(3)", "make(5)", "10", {}),
    "what a method of a made class holds": (MAKING + "f = M(2).f\n", "make(3)", "make(5)", "10", {}),
    "what the class of a passed object holds": (MAKING + "def f(m):\n    return m.f(1)\n", "make(3)", "make(5)", "M(2)", {}),
    "what the class of a passed plain object holds": (MAKING.replace("    @dataclasses.dataclass\n", "") + "def f(m):\n    return m.f(1)\n", "make(3)", "make(5)", "M()", {}),
    "the function in a made class": ("def make(g):\n    class M:\n        f = staticmethod(g)\n    return M\ndef g(x):\n    return x\ndef h(x):\n    return -x\ndef f(m):\n    return m.f(10)\nM = make(g)\n", "M = make(g)", "M = make(h)", "M", {}),
    "one of several functions of a name": ("REG = []\n@REG.append\ndef _(x):\n    return x\n@REG.append\ndef _(x):\n    return -x\nf = REG[0]\n", "f = REG[0]", "f = REG[1]", "10", {}),
    "one of several classes of a loop": ("KINDS = []\nfor k in (3, 9):\n    class M:\n        limit = k\n        @classmethod\n        def f(cls, n):\n            return n * cls.limit\n    KINDS.append(M)\nf = KINDS[0].f\n", "KINDS[0]", "KINDS[1]", "10", {}),
    "the function that a function of a loop holds": ("FS = []\nfor g in (min, max):\n    def h(n, g=g):\n        return g(n)\n    FS.append(h)\nH = FS[0]\ndef f(h):\n    return h([1, 5])\n", "FS[0]", "FS[1]", "H", {}),
    "the functions of a loop": ("FS = []\nfor k in (3, 9):\n    def g(n, k=k):\n        return n * k\n    FS.append(g)\nf = FS[0]\n", "FS[0]", "FS[1]", "10", {}),
    "a passed module": ("import other\ndef f(m):\n    return m.RATE\n", "= 3", "= 4", "other", {"other.py": "RATE = 3\n"}),
    "a module of a passed package": ("import pk\ndef f(m):\n    return m.RATE\n", "= 3", "= 4", "pk", {"pk/__init__.py": "from pk.a import RATE\n", "pk/a.py": "RATE = 3\n"}),
    "a global name that only a function assigns": ("def load():\n    global RATE\n    RATE = 3\nload()\ndef f(x):\n    return x * RATE\n", "= 3", "= 4", "10", {}),
    "the code of a passed cached function": ("import functools\n@functools.cache\ndef g(x):\n    return x * 3\ndef f(g):\n    return g(2)\n", "* 3", "* 4", "g", {}),
    "an assignment in a condition": ("if (R := 3):\n    pass\ndef f(x):\n    return x * R\n", ":= 3", ":= 4", "10", {}),
}  # fmt: skip

HARMLESS = {
    "sorted imports": ("import sys\nfrom new import g as tariff\nimport os\ndef f(x):\n    return tariff(x), os.sep, sys.byteorder\n", "import sys\nfrom new import g as tariff\nimport os\n", "import os\nimport sys\n\nfrom new import g as tariff\n", "10", TARIFFS),
    "imports that nothing uses": (CHOOSING, "from settings import NEW\n", "import math as m\nfrom old import RATE as R\nfrom settings import NEW\n", "10", TARIFFS),
    "definitions in another order": ("A = 1\nC = {}\nC['r'] = A\ndef h(x, a=A):\n    return C\ndef f(x):\n    return h(x)\n", "C = {}\nC['r'] = A\ndef h(x, a=A):\n    return C\n", "def h(x, a=A):\n    return C\nC = {}\nC['r'] = A\n", "10", {}),
    "the module of a conditional import": (CHOOSING, "from new import g", "from newer import g", "10", {**TARIFFS, "newer.py": TARIFFS["new.py"]}),
    "the module of a submodule under another name": ("from pk import new as tariff\ndef f(x):\n    return tariff.g(x)\n", "import new as", "import newer as", "10", {"pk/__init__.py": "", "pk/new.py": TARIFFS["new.py"], "pk/newer.py": TARIFFS["new.py"]}),
    "an import for type checkers only": ("import typing\nfrom new import RATE\ndef f(x: 'RATE'):\n    return x\n", "from new import RATE\n", "if typing.TYPE_CHECKING:\n    from new import RATE\n", "10", TARIFFS),
    "a narrower error of a failed import": ("try:\n    from nowhere import g\nexcept ImportError:\n    from new import g\n" + USING, "ImportError", "ModuleNotFoundError", "10", TARIFFS),
    "another name that a try binds": (TRYING.replace("    FAST =", "    N = 1\n    FAST ="), "N = 1", "N = 2", "10", {}),
    "what is tried before the only definition of a name": ("try:\n    X = len('a')\n    def f(x):\n        return x\nexcept KeyboardInterrupt:\n    pass\n", "'a'", "'ab'", "10", {}),
    "a table of functions above what they read": ("C = {}\ndef g(): return C['r']\nT = {'g': g}\nC['r'] = 4\ndef f(x):\n    return T['g']()\n", "T = {'g': g}\nC['r'] = 4\n", "C['r'] = 4\nT = {'g': g}\n", "10", {}),
    "the set-up of a library below its use": ("import logging\nlog = logging.getLogger('a')\nlogging.basicConfig()\ndef f(x):\n    return log.name\n", "log = logging.getLogger('a')\nlogging.basicConfig()\n", "logging.basicConfig()\nlog = logging.getLogger('a')\n", "10", {}),
    "a copy under another name": ("C = {'a': 1}\nT = C.copy()\nT['b'] = 1\ndef f(x):\n    return C\n", "['b'] = 1", "['b'] = 2", "10", {}),
    "a name that stands for another value now": ("C = {'a': {}}\nT = C['a']\nT = {}\nT['b'] = 1\ndef f(x):\n    return C\n", "['b'] = 1", "['b'] = 2", "10", {}),
    "a comment beside modules that import each other with a star": ("from one import *\ndef f(x):\n    return int(x)\n", "def f", "# f\ndef f", "10", {"one.py": "from two import *\nA = 1\n", "two.py": "from one import *\nB = 1\n"}),
    "a copy of the items": ("ROWS = ['a']\ndef f(x):\n    return ROWS\ntodo = list(ROWS)\ntodo.append(1)\nhead = ROWS[:5]\nhead.append(1)\n", "(1)", "(2)", "10", {}),
    "a method of a part that changes nothing": ("import pathlib\nOUT = {'a': pathlib.Path('a')}\ndef f(x):\n    return OUT\na = OUT['a']\na.exists()\n", "a.exists()", "a.is_dir()", "10", {}),
    "the other operand of a zip": ("A = [1]\nB = [{}]\ndef f(x):\n    return A\nfor a, b in zip(A, B):\n    b['x'] = 1\n", "= 1\n", "= 2\n", "10", {}),
    "sorted imports in a try": ("try:\n    import zlib\n    import json\n    HAS = True\nexcept ImportError:\n    HAS = False\ndef f(x):\n    return HAS\n", "    import zlib\n    import json\n", "    import json\n    import zlib\n", "10", {}),
    "the set-up of logging": ("import logging\nlog = logging.getLogger('a')\ndef setup():\n    logging.basicConfig(format='%(message)s')\n    log.setLevel(10)\nsetup()\ndef f(x):\n    log.debug(x)\n    return x\n", ")s'", ")s!'", "10", {}),
    "what a try prints": ("try:\n    import json as codec\n    print('json')\nexcept ImportError:\n    codec = None\ndef f(x):\n    return codec.dumps(x)\n", "'json'", "'plain json'", "10", {}),
    "a call that gets a constant": ("import os\nfrom pathlib import Path\nOUT = Path('out')\nos.makedirs(OUT, exist_ok=True)\ndef f(x):\n    return OUT.name\n", "exist_ok=True", "mode=0o700, exist_ok=True", "10", {}),
    "the default of a field": (CLASS + "def f(c):\n    return c.epochs\n", "epochs: int = 2", "epochs: int = 9", "Config(5)", {"other.py": ""}),
    "the default of a field of a made class": ("import dataclasses\ndef make(k):\n    @dataclasses.dataclass\n    class M:\n        a: int = k\n    return M\nM = make(3)\ndef f(m):\n    return m.a\n", "make(3)", "make(9)", "M(5)", {}),
    "a default of a made named tuple": ("from typing import NamedTuple\ndef make():\n    class Row(NamedTuple):\n        a: int\n        b: int = 2\n    return Row\nR = make()(1, 5)\ndef f(row):\n    return row.a\n", "b: int = 2", "b: int = 7", "R", {}),
    "another member of a made enum": ("import enum\ndef make():\n    class E(enum.Enum):\n        A = 1\n        B = 2\n    return E\nA = make().A\ndef f(e):\n    return e.name\n", "B = 2", "B = 7", "A", {}),
    "the default of a described field": (ROW.replace("b: int = 2", "b: int = dataclasses.field(default=2)"), "default=2", "default=3", "Row(b=5)", {}),
    "a new default": (ROW.replace(" = 1", "").replace(" = 2", ""), "b: int", "b: int = 3", "Row(1, 5)", {}),
    "a default that is made": (ROW.replace("b: int = 2", "b: dict = dataclasses.field(default_factory=lambda: dict(x=2))"), "x=2", "x=3", "Row(b=5)", {}),
    "a default with keywords": (ROW.replace("class Base", "from fractions import Fraction\nclass Base").replace("b: int = 2", "b: object = Fraction(numerator=2)"), "numerator=2", "numerator=3", "Row(b=5)", {}),
    "a default of the class of a field": (ROW.replace("@", "@dataclasses.dataclass\nclass Part:\n    n: int = 1\n@").replace("b: int = 2", "b: Part | None = None"), "n: int = 1", "n: int = 2", "Row()", {}),
    "a default beside a type variable": (ROW.replace("class Base", "import typing\nT = typing.TypeVar('T')\nclass Base").replace("b: int", "b: list[T]"), "= 2", "= 3", "Row(b=5)", {}),
    "a default of a model": (EVENT, "= '4'", "= '5'", "Event(card_id='6')", {}),
    "another member of an enum": ("import enum\nclass Size(enum.Enum):\n    S = 1\ndef f(s):\n    return str(s)\n", "S = 1\n", "S = 1\n    M = 2\n", "Size.S", {}),
    "a comment in a module beside one for another Python": ("try:\n    import new\nexcept SyntaxError:\n    pass\ndef f(x):\n    return x\n", "def f", "# f\ndef f", "10", {"new.py": "def g(: pass\n"}),
    "a main block": ("import other\nH = [1]\ndef f(x):\n    return H, other.OTHER\nif __name__ == '__main__':\n    other.show(H, 3)\n", ", 3", ", 4", "10", {"other.py": DEFAULTS}),
    "what is only printed": ("H = [1]\ndef f(x):\n    return H\nprint('a', H)\n", "'a'", "'b'", "10", {}),
    "what is only logged": ("import logging\nH = [1]\nlogging.info('a', H)\ndef f(x):\n    return H\n", "'a'", "'b'", "10", {}),
    "a function that only reads": ("H = [1]\ndef main(h):\n    return len(h)\nmain(H)\ndef f(x):\n    return H\n", "len(h)", "len(h) + 1", "10", {}),
    "another registered function": ("REG = []\ndef other(x):\n    return 3\ndef f(x):\n    return x\nREG.append(f)\nREG.append(other)\n", "return 3", "return 4", "10", {}),
    "another registered object": ("class T:\n    def __init__(self, n):\n        self.n = n\na = T(1)\nb = T(3)\nREG = set()\nREG.add(a)\nREG.add(b)\ndef f(x):\n    return a.n\n", "T(3)", "T(4)", "10", {}),
    "the workflow of a call with options": ("OPTIONS = {}\ndef g(x):\n    return 3\ndef run(*given): pass\nimport other\nother.run(g, OPTIONS)\ndef f(x):\n    return OPTIONS\n", "return 3", "return 4", "10", {"other.py": "def run(*given): pass\n"}),
    "a line above lambdas whose lines get another number of digits": ("def make(first, second):\n    def f(x):\n        return second(first(x))\n    return f\nf = make(\n    lambda x: x * 10,\n    lambda x: x + 1,\n)\n", "def make", "# a comment\ndef make", "3", {}),
    "the module of a function that a closure holds": (COMPOSING.replace("def scale(x): return x * 10\n", "from other import scale\n"), "from other import scale", "from more import scale", "3", {"other.py": "def scale(x): return x * 10\n", "more.py": "def scale(x): return x * 10\n"}),
    "the module of a passed function": ("from other import g\ndef f(g):\n    return g(3)\n", "from other import g", "from more import g", "[g][0]", {"other.py": "def g(x): return x * 10\n", "more.py": "def g(x): return x * 10\n"}),
    "functions that hold each other": ("def make():\n    def even(n): return n == 0 or odd(n - 1)\n    def odd(n): return n > 0 and even(n - 1)\n    return even\nf = make()\n", "def make", "# a comment\ndef make", "4", {}),
    "the set-up of an installed package": ("import logging\nlogging.basicConfig(level=30)\ndef f(x):\n    logging.info(x)\n", "30", "40", "10", {}),
}  # fmt: skip


UNEDITED = {  # the body, and the step
    "a character that was cut in two": ("import sys\n", "command([sys.executable, '-c', \"print('x' * 499 + chr(233) + 'x' * 2000)\"], max_output=1000, env={'PYTHONUTF8': '1'})"),
    "cut output with the text of escaped bytes": ("import sys\n", "command([sys.executable, '-c', 'print(bytes(range(128, 256)) * 20)'], max_output=1000)"),
    "a class that a loop changes": ("class Registry:\n    seen = 0\n    def add(self, n):\n        Registry.seen += 1\n        return n\nfor kind in 'ab':\n    Registry.kinds = kind\n", "python(Registry().add, 2)"),
    "a function that a loop registers for": ("import time\ndef f(n, start=time.time()):\n    return n\nf.cases = []\nfor i in range(3):\n    f.cases.append(i)\n", "python(f, 1)"),
    "the counter of a class of a decorator": ("def counted(cls):\n    class Counted(cls):\n        made = 0\n        def __init__(self, *a):\n            super().__init__(*a)\n            type(self).made += 1\n    return Counted\n@counted\nclass Job:\n    def __init__(self, n):\n        self.n = n\n    def run(self, k):\n        Job(1)\n        return self.n * k\n", "python(Job(4).run, 3)"),
    "a passed lambda": ("import time\nstamp = lambda n, at=time.time_ns(): n\ndef f(g):\n    return g(1)\n", "python(f, stamp)"),
    "a dictionary with lists as defaults": ("import collections, dataclasses\n@dataclasses.dataclass\nclass Price:\n    cents: int\nPrices = collections.defaultdict[str, list[Price]]\n", "wait('prices', type=Prices, timeout=0, default=collections.defaultdict(list, a=[Price(1)]))"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNEDITED)
def test_an_unedited_program_is_reused_in_whole(name, call, tmp_path):
    body, action = UNEDITED[name]
    write(tmp_path, body, "", {})
    text = (tmp_path / "flow.py").read_text().replace("python(f, )", action).replace("return (yield", "yield")
    (tmp_path / "flow.py").write_text(
        text.replace(".checkpoint())", ".checkpoint()") + "    yield step('end').wait('go')\n"
    )
    assert call("run", "flow.py", "--id", "one")[0] == 3
    for _ in range(2):
        again = call("resume", "one")
        assert again[0] == 3 and "steps: 0 executed, 1 restored" in again[2], again


@pytest.fixture
def call(tmp_path):
    def call(*arguments):
        code, said, trouble = run_module(
            "flowckpt", [*arguments], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}
        )
        return code, next((line for line in said.splitlines() if line.startswith("output: ")), ""), said, trouble

    return call


def write(folder, body, argument, files):
    (folder / "pyproject.toml").touch()
    for name, text in {"flow.py": FLOW.replace("{body}", body).replace("{argument}", argument), **files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def edited(tmp_path, call):
    """Return how a run of a program ended, after the program was edited."""

    def edited(body, old, new, argument, files):
        assert any(old in text for text in (body, *files.values()))
        write(tmp_path, body, argument, files)
        first = call("run", "flow.py", "--id", "one")
        assert first[0] == 0, first
        again = call("resume", "one")
        assert again[0] == 0 and "0 executed" in again[2], again
        changed = {name: f"{text.replace(old, new)}\n" for name, text in files.items()}  # Python notices another size
        write(tmp_path, body.replace(old, new), argument, changed)
        return first

    return edited


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_what_a_step_uses_stops_the_resume(name, edited, call):
    first = edited(*EDITS[name])
    assert call("resume", "one")[0] == 10
    resumed = call("resume", "one", "--on-code-change", "rerun")
    assert resumed[1] == call("run", "flow.py", "--id", "clean")[1] != first[1]


@pytest.mark.parametrize("name", HARMLESS)
def test_an_edit_of_what_a_step_does_not_use_stops_nothing(name, edited, call):
    first = edited(*HARMLESS[name])
    again = call("resume", "one")
    assert again[0] == 0 and "0 executed" in again[2], again
    assert again[1] == first[1] == call("run", "flow.py", "--id", "clean")[1]


@pytest.mark.parametrize("seconds", [3, 10_000])
def test_a_file_with_a_time_in_the_future_is_not_edited(seconds, tmp_path, call):
    """As after a clock was set back, or on a file server whose clock is ahead."""
    write(tmp_path, "def f(x):\n    return x * 3\n", "10", {})
    later = time.time() + seconds
    os.utime(tmp_path / "flow.py", (later, later))
    first = call("run", "flow.py", "--id", "one")
    assert first[0] == 0, first
    os.utime(tmp_path / "flow.py", (later - 100_000, later - 100_000))
    again = call("resume", "one")
    assert again[0] == 0 and "0 executed" in again[2], again
    write(tmp_path, "def f(x):\n    return x * 4\n", "10", {})
    os.utime(tmp_path / "flow.py", (later, later))
    assert call("resume", "one")[0] == 10


@pytest.mark.parametrize("is_edited", [True, False])
def test_bytecode_of_an_older_text_is_not_recorded_under_the_new_one(is_edited, tmp_path, call):
    """Python compares whole seconds and the size only, so an edit within the second of the import goes unnoticed."""
    write(tmp_path, "import rates\ndef f(x):\n    return x * rates.RATE\n", "10", {})
    second, helper = int(time.time()) - 100, tmp_path / "rates.py"
    helper.write_text("RATE = 3\n")
    os.utime(helper, (second + 0.25, second + 0.25))
    bytecode = Path(str(py_compile.compile(str(helper))))
    assert call("run", "flow.py", "--id", "one")[1] == "output: 30"
    os.utime(bytecode, (second + 0.5, second + 0.5))
    helper.write_text(f"RATE = {4 if is_edited else 3}\n")
    os.utime(helper, (second + 0.75, second + 0.75))
    again = call("resume", "one", "--on-code-change", "rerun")
    assert again[1] == "output: 30", again  # by the bytecode
    assert ("1 executed" in again[2]) == is_edited
    bytecode.unlink()
    assert call("resume", "one", "--on-code-change", "rerun")[1] == f"output: {40 if is_edited else 30}"


def test_a_time_in_the_future_stays_no_edit_when_it_has_passed(tmp_path, monkeypatch):
    scope = {"__name__": str(tmp_path)}
    functions.note_loaded_modules(scope)
    later = time.time_ns() + 10**12
    status = SimpleNamespace(st_mtime_ns=later, st_ctime_ns=later, st_size=1)
    monkeypatch.setattr(functions, "os", SimpleNamespace(stat=lambda _: status))
    assert not functions.is_edited("flow.py", scope)
    monkeypatch.setattr(functions, "time", SimpleNamespace(time_ns=lambda: later + 1))
    assert not functions.is_edited("flow.py", scope)
    status.st_ctime_ns = later + 1
    assert functions.is_edited("flow.py", scope)


LIBRARIES = {  # the body, what is passed, and what is passed instead
    "a function of another module": ("import cmath, math\ndef f(root):\n    return str(root(4))\n", "math.sqrt", "cmath.sqrt"),
    "a class of another package": ("import asyncio, queue\ndef f(kind):\n    return kind.__module__\n", "queue.Queue", "asyncio.Queue"),
    "a function of another module in a list": ("import json, pickle\ndef f(functions):\n    return [len(each([1])) for each in functions]\n", "[json.dumps]", "[pickle.dumps]"),
    "another class of a loop": ("KINDS = []\nfor k in (3, 9):\n    class M:\n        limit = k\n    KINDS.append(M)\ndef f(kind):\n    return kind.limit\n", "KINDS[0]", "KINDS[1]"),
    "another class of one function": (LIMITED + "def f(kind):\n    return kind.f(1)\n", "make(3)", "make(5)"),
    "another lambda of a comprehension": ("FS = {k: (lambda n, k=k: n * k) for k in (3, 9)}\ndef f(g):\n    return g(10)\n", "FS[3]", "FS[9]"),
    "the class of an inherited method": ("from collections import OrderedDict, UserDict\nclass A(UserDict): pass\ndef f(make):\n    return type(make('ab')).__name__\n", "UserDict.fromkeys", "A.fromkeys"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIBRARIES)
def test_another_function_of_a_library_is_another_argument(name, call, tmp_path):
    body, old, new = LIBRARIES[name]
    write(tmp_path, body, old, {})
    first = call("run", "flow.py", "--id", "one")
    assert first[0] == 0 and "0 executed" in call("resume", "one")[2], first
    write(tmp_path, body, f"{new}  ", {})
    resumed = call("resume", "one")
    assert resumed[:2] == call("run", "flow.py", "--id", "clean")[:2] and resumed[1] != first[1], resumed


CACHED = """
from flowckpt import step, workflow

def scale(x): return x * 10
def shift(x): return x + 1
def holding(function):
    def held(x): return function(x)
    return held
def composing(first, second):
    def composed(x): return second(first(x))
    return composed
def making(k):
    class Made:
        limit = k
    return Made
def limit_of(made): return made.limit
TIMES = {k: (lambda n, k=k: n * k) for k in (3, 9)}
def chain(x, functions):
    for function in functions: x = function(x)
    return x

@workflow
def flow():
    inc, ten = lambda x: x + 1, lambda x: x * 10
    found = []
    for function in (min, max, sum):
        found.append((yield step("held").python(holding(function), [1, 5, 3]).cache().checkpoint()))
    for k in (3, 9):
        found.append((yield step("made").python(limit_of, making(k)).cache().checkpoint()))
        found.append((yield step("times").python(chain, 10, [TIMES[k]]).cache().checkpoint()))
    for pair in ((scale, shift), (shift, scale), (inc, ten), (ten, inc)):
        found.append((yield step("composed").python(composing(*pair), 3).cache().checkpoint()))
        found.append((yield step("chain").python(chain, 3, [*pair]).cache().checkpoint()))
    return found
"""


def test_a_cached_result_is_that_of_the_functions_that_the_call_uses(call, tmp_path):
    (tmp_path / "flow.py").write_text(CACHED)
    clean = call("run", "flow.py", "--id", "clean", "--no-cache")
    first, second = call("run", "flow.py", "--id", "one"), call("run", "flow.py", "--id", "two")
    assert clean[0] == 0 and clean[1] == first[1] == second[1], (clean, first, second)
    assert second[3].count("taken from run") == 15, second


WAITING = """
import dataclasses
from flowckpt import step, workflow

@dataclasses.dataclass
class Price:
    cents: int
    # more

@workflow
def asking():
    try:
        found = yield step("ask").wait("rate", timeout=0).checkpoint()
    except TimeoutError:
        found = "late"
    return (yield step("bill").python(str, found).checkpoint())

@workflow
def paying():
    price = yield step("price").wait("price", type=Price)
    yield step("gate").wait("go")
    return (yield step("bill").python(str, price.cents).checkpoint())
"""


@pytest.mark.parametrize(
    ("old", "new"), [("", ", default=3"), (", default=3", ", default=4"), (", default=None", ""), (", default=3", "")]
)
def test_a_wait_whose_time_was_over_ends_by_its_present_default(old, new, call, tmp_path):
    (tmp_path / "flow.py").write_text(WAITING.replace("timeout=0", f"timeout=0{old}"))
    first = call("run", "flow.py:asking", "--id", "one")
    assert first[0] == 0 and "0 executed" in call("resume", "one")[2]
    (tmp_path / "flow.py").write_text(WAITING.replace("timeout=0", f"timeout=0{new}"))
    resumed = call("resume", "one", "--on-stale", "rerun")
    assert resumed[:2] == call("run", "flow.py:asking", "--id", "clean")[:2] and resumed[1] != first[1], resumed


def test_a_wait_that_took_a_signal_keeps_it_with_another_default(call, tmp_path):
    (tmp_path / "flow.py").write_text(WAITING.replace("timeout=0", "timeout=600, default=3"))
    assert call("run", "flow.py:asking", "--id", "one")[0] == 3
    assert call("signal", "one", "rate", "--data", "7", "--resume")[1] == "output: '7'"
    (tmp_path / "flow.py").write_text(WAITING.replace("timeout=0", "timeout=600, default=4"))
    again = call("resume", "one")
    assert (again[1], "0 executed" in again[2]) == ("output: '7'", True)


REJECTED = """
from flowckpt import step, workflow
from flowckpt.errors import StepFailedError

@workflow
def flow():
    try:
        verdict = yield step("review").approval(on_rejection="MODE")
    except StepFailedError as error:
        if not HANDLES:
            raise
        verdict = None
    yield step("gate").wait("go")
    return (yield step("publish").python(str, verdict and verdict.approved).checkpoint())
"""


@pytest.mark.parametrize(("before", "after"), [("return", "fail"), ("fail", "return")])
@pytest.mark.parametrize("handles", [False, True])
def test_a_rejected_approval_asks_again_if_a_rejection_ends_it_otherwise_now(before, after, handles, call, tmp_path):
    def write_with(mode):
        (tmp_path / "flow.py").write_text(REJECTED.replace("MODE", mode).replace("HANDLES", str(handles)))

    def reject(run):
        assert call("reject", run, "review", "--by", "ann")[0] == 0
        return call("resume", run)

    write_with(before)
    assert call("run", "flow.py", "--id", "one")[0] == 3
    reject("one")
    call("signal", "one", "go")
    write_with(after)
    asked = call("resume", "one", "--on-stale", "rerun")
    assert asked[0] == 3 and "waiting: review" in asked[2], asked
    resumed = reject("one")
    assert call("run", "flow.py", "--id", "clean")[0] == 3
    call("signal", "clean", "go")
    assert resumed[:2] == reject("clean")[:2]
    assert (resumed[0] == 0) == (handles or after == "return"), resumed


def test_an_approval_that_was_given_is_reused_with_another_end_of_a_rejection(call, tmp_path):
    (tmp_path / "flow.py").write_text(REJECTED.replace("MODE", "return").replace("HANDLES", "False"))
    assert call("run", "flow.py", "--id", "one")[0] == 3
    assert call("approve", "one", "review")[0] == 0 and call("resume", "one")[0] == 3
    (tmp_path / "flow.py").write_text(REJECTED.replace("MODE", "fail").replace("HANDLES", "False"))
    ended = call("signal", "one", "go", "--resume")
    assert (ended[0], ended[1], "1 restored" in ended[2]) == (0, "output: 'True'", True), ended


@pytest.mark.parametrize("edit", ["def __post_init__(self): self.cents *= 100", "cents: float = 0"])
def test_a_value_that_an_edited_class_would_change_is_not_reused(edit, call, tmp_path):
    (tmp_path / "flow.py").write_text(WAITING)
    assert call("run", "flow.py:paying", "--id", "one")[0] == 3
    assert call("signal", "one", "price", "--data", '{"cents": 1}', "--resume")[0] == 3
    (tmp_path / "flow.py").write_text(WAITING.replace("# more", edit))
    ended = call("signal", "one", "go", "--resume")
    if "post" in edit:
        assert ended[0] == 10 and "output.cents would come back as 100 instead of 1" in ended[3]
        assert call("resume", "one", "--on-code-change", "reuse")[0] == 14
        (tmp_path / "flow.py").write_text(WAITING.replace("# more", "currency: str = 'EUR'"))
        ended = call("resume", "one")
    assert ended[1] in ("output: '1'", "output: '1.0'")


def test_the_traceback_of_a_step_after_a_sleep_shows_only_the_step(call, tmp_path):
    text = "import datetime\nfrom flowckpt import step, workflow\ndef f():\n    raise OSError('away')\n@workflow\ndef flow():\n    yield step('s').sleep(0.01)\n    yield step('f').python(f)\n"
    (tmp_path / "flow.py").write_text(text)
    code, _, _, trouble = call("run", "flow.py", "--id", "one")
    assert code == 1 and "OSError: away" in trouble
    assert "During handling" not in trouble and "Suspended" not in trouble


def test_a_member_that_asks_an_empty_iterator_is_shown_with_its_line(call, tmp_path):
    text = "from flowckpt import step, workflow\ndef first(rows):\n    return next(iter(rows))\n@workflow\ndef flow():\n    yield step('m').map(first, [[1], []])\n"
    (tmp_path / "flow.py").write_text(text)
    code, _, _, trouble = call("run", "flow.py", "--id", "one")
    assert code == 1 and "m/[1]: RuntimeError: the step raised StopIteration" in trouble
    assert "in first\n    return next(iter(rows))" in trouble and "execution/thread.py" not in trouble


FAN_OUTS = {  # how the finished fan-out is yielded, and the edit
    "fewer failures are tolerated": ('step("m").map(f, [1, 0, 2], tolerate=1)', "tolerate=1", "tolerate=0"),
    "no failure is tolerated": ('step("m").map(f, [1, 0, 2], tolerate=0.5)', ", tolerate=0.5", ""),
    "more must succeed": ('step("m").map(f, [1, 2, 3, 4], min_success=1, concurrency=1)', "s=1", "s=3"),
    "all must succeed": ('step("m").map(f, [1, 2, 3], min_success=1, concurrency=1)', "min_success=1, ", ""),
    "more must succeed than do": ('step("m").map(f, [0, 1, 2], min_success=1, concurrency=1)', "s=1", "s=3"),
    "a group": ('parallel(step("a").python(f, 1), step("b").python(f, 0), tolerate=1)', ", tolerate=1", ""),
    "a race": ('parallel(step("a").python(f, 1), step("b").python(f, 2), min_success=1, concurrency=1)', "s=1", "s=2"),
}
SAME_ENDS = {
    "more failures are tolerated": ('step("m").map(f, [1, 0, 2], tolerate=1)', "tolerate=1", "tolerate=2"),
    "as many must succeed as do": (
        'step("m").map(f, [1, 0, 2], tolerate=1)',
        "tolerate=1",
        "min_success=2, tolerate=1",
    ),
    "a fraction": ('step("m").map(f, [1, 2, 3, 4], min_success=1, concurrency=1)', "min_success=1", "min_success=0.25"),
}
FAN_OUT_FLOW = """
from pathlib import Path
from flowckpt import parallel, step, workflow
from flowckpt.errors import FanOutFailedError

def f(x):
    Path(f"made-{x}").touch()
    return 10 // x

def instead():
    return [1]

@workflow
def flow():
    try:
        done = yield FAN_OUT.checkpoint()
    except FanOutFailedError:
        if not HANDLES:
            raise
        done = yield step("instead").python(instead).checkpoint()
    return sum(each for each in done if isinstance(each, int))
"""


@pytest.fixture
def call_fan_out(tmp_path, call):
    """Return a function that calls flowckpt for a program with a fan-out, and returns the end and the made files."""

    def call_fan_out(fan_out, *arguments, handles=False):
        text = FAN_OUT_FLOW.replace("FAN_OUT", fan_out, 1).replace("HANDLES", str(handles))
        (tmp_path / "flow.py").write_text(text)
        code, output, said, _ = call(*arguments)
        return code, output, said, sorted(each.name for each in tmp_path.glob("made-*"))

    return call_fan_out


@pytest.mark.parametrize("name", FAN_OUTS)
def test_a_finished_fan_out_is_judged_by_its_present_arguments(name, call_fan_out, tmp_path):
    fan_out, old, new = FAN_OUTS[name]
    first = call_fan_out(fan_out, "run", "flow.py", "--id", "one")
    edited = fan_out.replace(old, new)
    assert first[0] == 0 and edited != fan_out
    assert call_fan_out(edited, "plan", "one")[0] == 10
    resumed = call_fan_out(edited, "resume", "one")
    assert f"{len(first[3])} restored" in resumed[2]
    for each in tmp_path.glob("made-*"):
        each.unlink()
    clean = call_fan_out(edited, "run", "flow.py", "--id", "clean")
    assert resumed[:2] == clean[:2] != first[:2]
    if clean[0] == 0:
        assert resumed[3] == clean[3]
        assert "nothing to run" in call_fan_out(edited, "plan", "one")[2]


@pytest.mark.parametrize("name", SAME_ENDS)
def test_a_finished_fan_out_that_ends_alike_is_reused(name, call_fan_out):
    fan_out, old, new = SAME_ENDS[name]
    first = call_fan_out(fan_out, "run", "flow.py", "--id", "one")
    assert "nothing to run" in call_fan_out(fan_out.replace(old, new), "plan", "one")[2]
    resumed = call_fan_out(fan_out.replace(old, new), "resume", "one")
    assert resumed[:2] == first[:2] and " 0 executed" in resumed[2]


def test_a_handled_failure_that_is_tolerated_now(call_fan_out):
    fan_out = 'step("m").map(f, [1, 0, 2], concurrency=1)'
    first = call_fan_out(fan_out, "run", "flow.py", "--id", "one", handles=True)
    assert (first[1], first[3]) == ("output: 1", ["made-0", "made-1"])
    edited = fan_out.replace("2]", "2], tolerate=1")
    assert call_fan_out(edited, "plan", "one", handles=True)[0] == 10
    assert call_fan_out(edited, "resume", "one", handles=True)[0] == 10  # what handled the failure is not undone
    resumed = call_fan_out(edited, "resume", "one", "--on-stale", "rerun", handles=True)
    assert resumed[1] == "output: 15" == call_fan_out(edited, "run", "flow.py", "--id", "clean", handles=True)[1]


ROWS = """
from dataclasses import dataclass
from pathlib import Path
from flowckpt import step, workflow

@dataclass
class Row:
    id: int

def extract(first=1) -> list[Row]:
    return [Row(first), Row(2)]

def count(rows):
    if not Path("ready").exists():
        raise OSError("not ready")
    return repr(rows)

@workflow
def flow():
    yield step("pre").python(int, 1).checkpoint()
    rows = yield step("extract").EXTRACT.checkpoint()
    return (yield step("count").python(count, rows).checkpoint())
"""


RERUN = "--on-code-change rerun"


@pytest.mark.parametrize(
    ("is_finished", "extract", "options"),
    [
        *((True, "python(extract)", each) for each in (RERUN, "--from extract", "--from pre", "--force")),
        (False, "python(extract)", RERUN),
        (True, "map(extract, [1, 3])", RERUN),
        (False, "map(extract, [1, 3])", f"--reuse inputs {RERUN}"),
    ],
)
def test_a_step_whose_result_no_longer_fits_runs_again_on_request(is_finished, extract, options, tmp_path, call):
    text = ROWS.replace("EXTRACT", extract)
    (tmp_path / "flow.py").write_text(text)
    if is_finished:
        (tmp_path / "ready").touch()
    assert call("run", "flow.py", "--id", "one")[0] == (0 if is_finished else 1)
    (tmp_path / "ready").touch()
    text = text.replace("id: int", "id: int\n    shop: str").replace(
        "Row(first), Row(2)", "Row(first, 'a'), Row(2, 'b')"
    )
    (tmp_path / "flow.py").write_text(text)
    path = "extract" if "python" in extract else "extract/[0]"

    plan = call("plan", "one")
    assert plan[0] == 10 and f"rerun     {path} " in plan[2], plan
    assert call("resume", "one")[0] == 10
    code, _, _, said = call("resume", "one", "--on-code-change", "reuse")
    assert code == 14 and f"the result of step '{path}' of run 'one' cannot be reused: the recorded" in said
    assert "'flowckpt resume one --on-code-change rerun' or " in said and "flowckpt resume one --from " in said

    planned = call("plan", "one", *options.split())
    assert planned[0] in (0, 10) and f"rerun     {path} " in planned[2], planned
    resumed = call("resume", "one", *options.split())
    assert resumed[:2] == call("run", "flow.py", "--id", "clean")[:2] and resumed[0] == 0, resumed
    assert "nothing to run" in call("plan", "one")[2]
