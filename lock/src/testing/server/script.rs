//! Lua scripts, run by the same Lua 5.1 that servers have in them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use mlua::{Error, Function, Lua, Result, Table, Value, Variadic};

use super::Data;
use super::reply::{Outcome, Reply, format_number};
use crate::engine::sync::lock;

/// The interpreter, and the scripts that it knows by their SHA-1.
pub(super) struct Scripts {
    /// Why there is none, if that could not be made.
    lua: std::result::Result<Lua, String>,
    known: HashMap<String, Function>,
}

impl Scripts {
    pub(super) fn new(data: &Arc<Mutex<Data>>) -> Self {
        Self {
            lua: interpreter(data).map_err(|error| format!("ERR {error}")),
            known: HashMap::new(),
        }
    }

    /// `EVAL source numkeys key… arg…`
    pub(super) fn eval(&mut self, args: &[Vec<u8>]) -> Outcome {
        let sha = self.learn(args.get(1).ok_or("ERR wrong number of arguments")?)?;
        self.run(&sha, args)
    }

    /// `SCRIPT LOAD source`
    pub(super) fn load(&mut self, args: &[Vec<u8>]) -> Outcome {
        match args {
            [_, what, source] if what.eq_ignore_ascii_case(b"LOAD") => {
                Ok(Reply::text(self.learn(source)?))
            }
            _ => Err("ERR unknown subcommand of SCRIPT".to_owned()),
        }
    }

    /// Compiles a script, unless it is known; its SHA-1.
    fn learn(&mut self, source: &[u8]) -> std::result::Result<String, String> {
        let sha = sha1_smol::Sha1::from(source).digest().to_string();
        if !self.known.contains_key(&sha) {
            let lua = self.lua.as_ref().map_err(String::clone)?;
            let compiled = lua.load(source).set_name("user_script");
            let compiled = compiled.into_function();
            let compiled =
                compiled.map_err(|error| format!("ERR Error compiling script: {error}"))?;
            self.known.insert(sha.clone(), compiled);
        }
        Ok(sha)
    }

    /// `EVALSHA sha numkeys key… arg…`
    pub(super) fn eval_sha(&self, args: &[Vec<u8>]) -> Outcome {
        let sha = args.get(1).ok_or("ERR wrong number of arguments")?;
        let sha = String::from_utf8_lossy(sha).to_ascii_lowercase();
        self.run(&sha, args)
    }

    fn run(&self, sha: &str, args: &[Vec<u8>]) -> Outcome {
        let lua = self.lua.as_ref().map_err(String::clone)?;
        let Some(script) = self.known.get(sha) else {
            return Err("NOSCRIPT No matching script. Please use EVAL.".to_owned());
        };
        let count = args
            .get(2)
            .and_then(|count| std::str::from_utf8(count).ok());
        let count = count.and_then(|count| count.parse::<usize>().ok());
        let count = count.ok_or("ERR value is not an integer or out of range")?;
        let rest = &args[3..];
        if count > rest.len() {
            return Err("ERR Number of keys can't be greater than number of args".to_owned());
        }
        let (keys, values) = rest.split_at(count);
        let called = call(lua, script, keys, values);
        match called.map_err(|error| text_of(&error))? {
            Reply::Error(text) => Err(text),
            reply => Ok(reply),
        }
    }
}

fn call(lua: &Lua, script: &Function, keys: &[Vec<u8>], values: &[Vec<u8>]) -> Result<Reply> {
    lua.globals().set("KEYS", strings(lua, keys)?)?;
    lua.globals().set("ARGV", strings(lua, values)?)?;
    from_lua(script.call::<Value>(())?)
}

fn strings(lua: &Lua, items: &[Vec<u8>]) -> Result<Table> {
    let strings = items.iter().map(|item| lua.create_string(item));
    lua.create_sequence_from(strings.collect::<Result<Vec<_>>>()?)
}

/// A Lua with the tables that scripts use of those of a server.
fn interpreter(data: &Arc<Mutex<Data>>) -> Result<Lua> {
    let lua = Lua::new();
    let redis = lua.create_table()?;
    let (called, tried) = (Arc::clone(data), Arc::clone(data));
    let call = move |lua: &Lua, args: Variadic<Value>| {
        let outcome = lock(&called).run(&arguments(&args)?);
        let reply = outcome.map_err(|text| Error::external(Refused(text)))?;
        to_lua(lua, &reply)
    };
    let try_call = move |lua: &Lua, args: Variadic<Value>| {
        let outcome = lock(&tried).run(&arguments(&args)?);
        to_lua(lua, &outcome.unwrap_or_else(Reply::Error))
    };
    let error_reply = |lua: &Lua, text: mlua::String| {
        let reply = lua.create_table()?;
        reply.set("err", text)?;
        Ok(reply)
    };
    redis.set("call", lua.create_function(call)?)?;
    redis.set("pcall", lua.create_function(try_call)?)?;
    redis.set("error_reply", lua.create_function(error_reply)?)?;
    lua.globals().set("redis", redis)?;
    let packing = lua.create_table()?;
    packing.set("pack", lua.create_function(pack)?)?;
    lua.globals().set("struct", packing)?;
    Ok(lua)
}

/// `struct.pack` for whole numbers, the highest byte first, as in `>I4I3`.
fn pack(lua: &Lua, (format, numbers): (String, Variadic<f64>)) -> Result<mlua::String> {
    let unknown = || Error::runtime(format!("`struct.pack` with the format {format}"));
    let sizes = format.strip_prefix(">I").ok_or_else(unknown)?;
    let mut packed = Vec::new();
    let mut numbers = numbers.iter();
    for size in sizes.split('I') {
        let size: usize = size.parse().map_err(|_| unknown())?;
        let number = *numbers.next().ok_or_else(unknown)? as u64;
        let bytes = number.to_be_bytes();
        packed.extend_from_slice(bytes.get(8 - size.min(8)..).ok_or_else(unknown)?);
    }
    lua.create_string(packed)
}

fn arguments(args: &[Value]) -> Result<Vec<Vec<u8>>> {
    let argument = |arg: &Value| match arg {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(n) => Ok(n.to_string().into_bytes()),
        Value::Number(n) => Ok(format_number(*n).into_bytes()),
        _ => Err(Error::external(Refused(
            "ERR Lua redis lib command arguments must be strings or integers".to_owned(),
        ))),
    };
    args.iter().map(argument).collect()
}

fn to_lua(lua: &Lua, reply: &Reply) -> Result<Value> {
    let table_of = |field: &str, text: &str| {
        let table = lua.create_table()?;
        table.set(field, text)?;
        Ok(Value::Table(table))
    };
    match reply {
        Reply::Status(text) => table_of("ok", text),
        Reply::Error(text) => table_of("err", text),
        Reply::Int(n) => Ok(Value::Number(*n as f64)),
        Reply::Bulk(bytes) => lua.create_string(bytes).map(Value::String),
        Reply::Nil => Ok(Value::Boolean(false)),
        Reply::Array(items) | Reply::Map(items) | Reply::Push(items) => {
            let items = items.iter().map(|item| to_lua(lua, item));
            let items = items.collect::<Result<Vec<_>>>()?;
            lua.create_sequence_from(items).map(Value::Table)
        }
    }
}

fn from_lua(value: Value) -> Result<Reply> {
    Ok(match value {
        Value::Boolean(true) => Reply::Int(1),
        Value::Integer(n) => Reply::Int(n),
        Value::Number(n) => Reply::Int(n as i64),
        Value::String(text) => Reply::text(text.as_bytes().to_vec()),
        Value::Table(table) => {
            if let Some(text) = table.get::<Option<mlua::String>>("err")? {
                return Ok(Reply::Error(text.to_string_lossy()));
            }
            if table.get::<Option<mlua::String>>("ok")?.is_some() {
                return Ok(Reply::OK);
            }
            let mut items = Vec::new();
            // Up to the first `nil`, as a server does.
            for item in table.sequence_values::<Value>() {
                items.push(from_lua(item?)?);
            }
            Reply::Array(items)
        }
        _ => Reply::Nil,
    })
}

/// The error of a command that a script did not catch.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

fn text_of(error: &Error) -> String {
    match error {
        Error::CallbackError { cause, .. } => text_of(cause),
        Error::ExternalError(error) => error.to_string(),
        error => format!("ERR {}", error.to_string().replace(['\r', '\n'], " ")),
    }
}
