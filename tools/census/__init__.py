# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Census of the statements that a reload has to answer for.

They are of two sorts: those that drop, rename, empty or move a loaded parameter
(`sites`), and those that keep a new tensor which is no parameter (`derived`).

`python -m tools.census` walks the syntax of the composed tree (upstream's files of the
pinned release with the overlay merged in) from every function that runs in a load or
after it, and lists every such statement. Each is one of the series' own, or listed in
`allowed.toml` or `allowed_derived.toml` with its reason or in `pending.toml` with its
row of the site map, or an error; so is a listed one that is no longer there. A new
tensor of the series' own has to be listed like any other.

Loaders that keep one half of a pair of tensors are listed with them, by `half_pairs`.

It is syntax only: nothing of vLLM is imported. What that cannot see:

1. Dispatch by name. `x.f()` on an unknown `x` reaches every method `f`, too many;
   what goes through a table, a string, `partial` on an attribute, or an attribute that
   is stored first and called later, is not followed.
2. Scope. Calls are followed within `reach.PACKAGES`, and not into what builds a layer
   or runs it (`reach.STOPS`); of all else only lazy caches are seen. Objects that a
   model builds once after its load, as Kimi-K3's specialized decode, are not.
3. Names. A plain `layer.n = v` counts where v is a Parameter, or n or v's attribute is
   a name that `register_parameter("...")` or a constructor gives to a parameter
   somewhere in the tree. A name put together at run time is not among these.
4. Values. None, empty tensors and Parameters are seen where written, in a local of the
   same function, and as an argument set to None and returned; not through calls. A
   `replace_parameter` with a smaller tensor is no site: the function keeps the storage.
5. Receivers. Every object but a non-module's `self` counts as a layer: descriptors and
   temporaries are listed too, and allowed with that as their reason.
6. Aliases. A parameter kept in a closure, list or kernel object is not tracked.
7. New tensors. Of a call outside of the tree it is known only whether a tensor is given
   to it; a function that takes its tensors off a layer itself, and is not annotated,
   looks as if it gave none. That `kept_constants` names an attribute counts, whether or
   not the method calls `keep_constants`.
"""
