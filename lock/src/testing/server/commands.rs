//! The commands that scripts and clients use, on the keyspace.

use super::keyspace::{Keyspace, Value};
use super::reply::{Outcome, Reply};

mod collections;
mod sorted;

/// Runs a command on the keys; `None` if it is not one of these.
pub(super) fn run(keys: &mut Keyspace, args: &[Vec<u8>]) -> Option<Outcome> {
    let (name, args) = args.split_first()?;
    let name = name.to_ascii_uppercase();
    Some(match name.as_slice() {
        b"GET" => one(args).and_then(|key| get(keys, key)),
        b"SET" => set(keys, args),
        b"INCR" => one(args).and_then(|key| increase(keys, key, 1)),
        b"DECR" => one(args).and_then(|key| increase(keys, key, -1)),
        b"INCRBY" => two(args).and_then(|(key, by)| increase(keys, key, integer(by)?)),
        b"DEL" | b"UNLINK" => Ok(count(args, |key| keys.remove(key))),
        b"EXISTS" => Ok(count(args, |key| keys.exists(key))),
        b"PEXPIRE" => expire(keys, args, 1),
        b"EXPIRE" => expire(keys, args, 1000),
        b"PTTL" => one(args).map(|key| {
            Reply::Int(match keys.left(key) {
                None => -2,
                Some(None) => -1,
                Some(Some(left)) => i64::try_from(left).unwrap_or(i64::MAX),
            })
        }),
        b"TYPE" => one(args).map(|key| {
            Reply::Status(match keys.get(key) {
                None => "none",
                Some(Value::Text(_)) => "string",
                Some(Value::Hash(_)) => "hash",
                Some(Value::Sorted(_)) => "zset",
                Some(Value::List(_)) => "list",
            })
        }),
        b"TIME" => Ok(time(keys)),
        b"FLUSHALL" | b"FLUSHDB" => {
            keys.remove_if(|_| true);
            Ok(Reply::OK)
        }
        name if name.starts_with(b"H") => return collections::hash(keys, name, args),
        name if name.starts_with(b"L") || name.starts_with(b"R") => {
            return collections::list(keys, name, args);
        }
        name if name.starts_with(b"Z") => return sorted::run(keys, name, args),
        _ => return None,
    })
}

fn time(keys: &Keyspace) -> Reply {
    let micros = keys.micros();
    Reply::Array(vec![
        Reply::text((micros / 1_000_000).to_string()),
        Reply::text((micros % 1_000_000).to_string()),
    ])
}

fn get(keys: &mut Keyspace, key: &[u8]) -> Outcome {
    Ok(Reply::bulk_or_nil(keys.text(key)?.cloned()))
}

fn set(keys: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let [key, value, options @ ..] = args else {
        return Err(arity());
    };
    let (mut expiry, mut keeps, mut gets, mut if_absent, mut if_there) =
        (None, false, false, false, false);
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match option.to_ascii_uppercase().as_slice() {
            b"PX" => expiry = Some(integer(options.next().ok_or_else(syntax)?)?),
            b"EX" => expiry = Some(integer(options.next().ok_or_else(syntax)?)? * 1000),
            b"KEEPTTL" => keeps = true,
            b"GET" => gets = true,
            b"NX" => if_absent = true,
            b"XX" => if_there = true,
            _ => return Err(syntax()),
        }
    }
    if expiry.is_some_and(|expiry| expiry <= 0) {
        return Err("ERR invalid expire time in 'set' command".to_owned());
    }
    let old = match gets {
        true => keys.text(key)?.cloned(),
        false => None,
    };
    let is_there = keys.exists(key);
    let sets = !(if_absent && is_there || if_there && !is_there);
    if sets {
        keys.put(key, Value::Text(value.clone()), keeps);
        if let Some(expiry) = expiry {
            keys.expire(key, expiry);
        }
    }
    Ok(match (gets, sets) {
        (true, _) => Reply::bulk_or_nil(old),
        (false, true) => Reply::OK,
        (false, false) => Reply::Nil,
    })
}

fn increase(keys: &mut Keyspace, key: &[u8], by: i64) -> Outcome {
    let known = match keys.text(key)? {
        Some(text) => integer(text)?,
        None => 0,
    };
    let sum = known
        .checked_add(by)
        .ok_or("ERR increment or decrement would overflow")?;
    keys.put(key, Value::Text(sum.to_string().into_bytes()), true);
    Ok(Reply::Int(sum))
}

fn expire(keys: &mut Keyspace, args: &[Vec<u8>], unit: i64) -> Outcome {
    let [key, time, options @ ..] = args else {
        return Err(arity());
    };
    let millis = integer(time)?.saturating_mul(unit);
    for option in options {
        if !option.eq_ignore_ascii_case(b"GT") {
            return Err(format!(
                "ERR Unsupported option {}",
                String::from_utf8_lossy(option)
            ));
        }
        let is_longer = match keys.left(key) {
            None => true,
            // A key that does not end ends later than any other.
            Some(None) => false,
            Some(Some(left)) => i64::try_from(left).is_ok_and(|left| millis > left),
        };
        if !is_longer {
            return Ok(Reply::Int(0));
        }
    }
    Ok(Reply::Int(i64::from(keys.expire(key, millis))))
}

/// How many of `args` there is something to do for.
fn count(args: &[Vec<u8>], mut is_counted: impl FnMut(&[u8]) -> bool) -> Reply {
    let counted = args.iter().filter(|arg| is_counted(arg)).count();
    Reply::Int(counted as i64)
}

fn one(args: &[Vec<u8>]) -> Result<&[u8], String> {
    match args {
        [one] => Ok(one),
        _ => Err(arity()),
    }
}

fn two(args: &[Vec<u8>]) -> Result<(&[u8], &[u8]), String> {
    match args {
        [one, two] => Ok((one, two)),
        _ => Err(arity()),
    }
}

fn integer(text: &[u8]) -> Result<i64, String> {
    let number = std::str::from_utf8(text).ok().and_then(|text| {
        let is_plain = !text.starts_with('+') && (text == "0" || !text.starts_with('0'));
        text.parse().ok().filter(|_| is_plain)
    });
    number.ok_or_else(|| "ERR value is not an integer or out of range".to_owned())
}

/// The items from `start` to `stop`, either of which counts from the end if it is negative.
fn range(len: usize, start: i64, stop: i64) -> std::ops::Range<usize> {
    let len = len as i64;
    let at = |index: i64| if index < 0 { len + index } else { index };
    let (start, stop) = (at(start).max(0), at(stop).min(len - 1));
    if start > stop {
        return 0..0;
    }
    start as usize..stop as usize + 1
}

fn arity() -> String {
    "ERR wrong number of arguments".to_owned()
}

fn syntax() -> String {
    "ERR syntax error".to_owned()
}
