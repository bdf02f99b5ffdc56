"""What `pyproject.toml` cannot say: the part in C. Where it cannot be compiled, picopyn is installed without it."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "picopyn.dialects.picodata._quick_keys",
            ["picopyn/dialects/picodata/_quick_keys.c"],
            define_macros=[("Py_LIMITED_API", "0x030b0000")],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
