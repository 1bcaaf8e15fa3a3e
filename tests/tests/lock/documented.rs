//! Every public type and method of the library has an example that runs: its own, or for a method that of its type, if that one
//! calls it. A type of fields or variants alone has nothing to run.
//!
//! What is `pub` in the sources is public: the lint `unreachable_pub` sees to it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A public type or method, with its documentation.
struct Item {
    /// The type, or that of the method.
    of: String,
    /// Of a method.
    method: Option<String>,
    place: String,
    /// Its examples that run, in one text.
    examples: String,
}

#[test]
fn every_public_type_and_method_has_an_example_that_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock/src");
    let mut items = Vec::new();
    for path in sources(&root) {
        items.extend(public_items(&path));
    }
    assert!(items.len() > 150, "{} items", items.len());

    let mut of_types = BTreeMap::new();
    for item in items.iter().filter(|item| item.method.is_none()) {
        // Types of the same name in several modules are shown by each other's examples.
        let known: &mut String = of_types.entry(item.of.as_str()).or_default();
        known.push_str(&item.examples);
    }
    // The methods that a macro gives to both guards of a read-write lock.
    of_types.insert("$guard", of_types["ReadGuard"].clone());
    let methods = items.iter().filter(|item| item.method.is_some());
    let with_methods: BTreeSet<_> = methods.map(|item| item.of.as_str()).collect();
    let missing: Vec<_> = items
        .iter()
        .filter(|item| with_methods.contains(item.of.as_str()))
        .filter(|item| item.examples.is_empty() && !is_shown(item, &of_types))
        .map(|item| match &item.method {
            Some(method) => format!("{}::{method} ({})", item.of, item.place),
            None => format!("{} ({})", item.of, item.place),
        })
        .collect();
    assert!(missing.is_empty(), "without an example: {missing:#?}");
}

/// Whether the example of its type calls the method.
fn is_shown(item: &Item, of_types: &BTreeMap<&str, String>) -> bool {
    let Some(method) = &item.method else {
        return false;
    };
    of_types.get(item.of.as_str()).is_some_and(|example| {
        example.contains(&format!(".{method}("))
            || example.contains(&format!("{}::{method}(", item.of))
    })
}

/// The Rust files under `folder`.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The public types and methods of one file.
fn public_items(path: &Path) -> Vec<Item> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut items = Vec::new();
    let mut documentation = Vec::new();
    let mut of = String::new();
    let mut is_hidden = false;
    for (number, line) in text.lines().enumerate() {
        let code = line.trim();
        if let Some(doc) = code.strip_prefix("///") {
            documentation.push(doc.strip_prefix(' ').unwrap_or(doc));
            continue;
        }
        is_hidden |= code == "#[doc(hidden)]";
        // Attributes, some of which take several lines, stand between a comment and its item.
        if code.starts_with('#') || (!documentation.is_empty() && is_rest_of_attribute(code)) {
            continue;
        }
        if let Some(name) = type_of_impl(code) {
            of = name;
        }
        let place = || format!("{}:{}", path.display(), number + 1);
        if let Some((keyword, name)) = public(code).filter(|_| !is_hidden) {
            let method = (keyword == "fn").then(|| name.clone());
            // A function outside of a type has none to be shown by.
            let of = if keyword == "fn" { of.clone() } else { name };
            items.push(Item {
                of,
                method,
                place: place(),
                examples: running_examples(&documentation),
            });
        }
        documentation.clear();
        is_hidden = false;
    }
    items
}

/// A line of an attribute that began above: an argument, or its end.
fn is_rest_of_attribute(code: &str) -> bool {
    code == ")]" || code.starts_with("reason = ") || code.starts_with("note = ")
}

/// The type whose own methods begin here.
fn type_of_impl(code: &str) -> Option<String> {
    let rest = code.strip_prefix("impl")?;
    if rest.contains(" for ") {
        return None;
    }
    let name = match rest.strip_prefix('<') {
        Some(generics) => generics.split_once("> ")?.1,
        None => rest.strip_prefix(' ')?,
    };
    Some(name_at(name))
}

/// What kind of public item begins here, `struct`, `enum` or `fn`, and its name.
fn public(code: &str) -> Option<(&'static str, String)> {
    let mut rest = code.strip_prefix("pub ")?;
    for word in ["const ", "async "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    ["struct", "enum", "fn"].into_iter().find_map(|keyword| {
        let name = rest.strip_prefix(keyword)?.strip_prefix(' ')?;
        Some((keyword, name_at(name)))
    })
}

/// The name that `text` begins with.
fn name_at(text: &str) -> String {
    let is_of_name = |c: &char| c.is_alphanumeric() || *c == '_' || *c == '$';
    text.chars().take_while(is_of_name).collect()
}

/// The code blocks that are compiled and run, in one text.
fn running_examples(documentation: &[&str]) -> String {
    let mut examples = String::new();
    let mut runs = None;
    for line in documentation {
        match (line.trim().strip_prefix("```"), runs) {
            (Some(kind), None) => runs = Some(kind.is_empty() || kind == "rust"),
            (Some(_), Some(_)) => runs = None,
            (None, Some(true)) => {
                examples.push_str(line);
                examples.push('\n');
            }
            (None, _) => {}
        }
    }
    examples
}
