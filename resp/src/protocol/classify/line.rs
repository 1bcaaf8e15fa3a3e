//! An error line taken apart: code, message, and whether a script was running.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

/// The parts of an error line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    /// The first word, if it is a code.
    pub(super) code: &'a str,
    pub(super) message: &'a str,
    pub(super) in_script: bool,
}

impl<'a> Line<'a> {
    pub(super) fn read(text: &'a str) -> Self {
        let text = text.trim_end_matches(['\r', '\n']);
        let stripped = without_suffix(text);
        let (code, message) = split_code(stripped.unwrap_or(text));
        let wrapped = match code {
            "ERR" => message
                .strip_prefix("Error running script (call to ")
                .and_then(|rest| rest.split_once("): "))
                .map(|(_, inner)| inner),
            // A script caught it, and replied with it.
            "" => Some(message).filter(|message| message.starts_with("@user_script:")),
            _ => None,
        };
        if let Some(wrapped) = wrapped {
            let (inner_code, inner_message) = split_code(unwrapped(wrapped));
            let code = if inner_code.is_empty() {
                "ERR"
            } else {
                inner_code
            };
            return Self {
                code,
                message: inner_message,
                in_script: true,
            };
        }
        Self {
            code,
            message,
            in_script: stripped.is_some(),
        }
    }
}

/// The line before ` script: <sha>, on @user_script:<n>.` (Redis 7.0 to Valkey 8.1; functions have their name and
/// `@user_function` there) or ` script: on @user_script:<n>.` (Valkey 9.1), if it ends so.
fn without_suffix(text: &str) -> Option<&str> {
    let (before, suffix) = text.rsplit_once(" script: ")?;
    let place = suffix
        .strip_prefix("on ")
        .or_else(|| suffix.split_once(", on ").map(|(_, place)| place))?;
    let (source, number) = place.strip_suffix('.')?.rsplit_once(':')?;
    (source.starts_with('@') && is_number(number)).then_some(before)
}

/// The error that Redis 6.2 wrapped: the text behind the last `@user_script:<n>: ` or `@user_script: <n>: `.
///
/// Refusals by the server keep the dash of an error reply there, errors of an executed command do not.
fn unwrapped(mut inner: &str) -> &str {
    while let Some((_, rest)) = inner.split_once("@user_script:") {
        let Some((number, rest)) = rest.trim_start_matches(' ').split_once(": ") else {
            break;
        };
        if !is_number(number) {
            break;
        }
        inner = rest;
    }
    inner.strip_prefix('-').unwrap_or(inner)
}

/// The code and the rest; no code if the first word does not look like one.
fn split_code(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let is_code = word.len() > 1
        && word.starts_with(|first: char| first.is_ascii_uppercase())
        && word
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    if is_code { (word, rest) } else { ("", text) }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}
