//! Hashes and lists.

use std::collections::VecDeque;

use super::super::keyspace::{Hash, Keyspace, Value};
use super::super::reply::{Outcome, Reply};
use super::{arity, count, integer, one, range, syntax, two};

pub(super) fn hash(keys: &mut Keyspace, name: &[u8], args: &[Vec<u8>]) -> Option<Outcome> {
    Some(match name {
        b"HSET" => hset(keys, args),
        b"HGET" => two(args).and_then(|(key, field)| {
            let value = keys.hash(key)?.and_then(|hash| hash.get(field).cloned());
            Ok(Reply::bulk_or_nil(value))
        }),
        b"HMGET" => hmget(keys, args),
        b"HEXISTS" => two(args).and_then(|(key, field)| {
            let hash = keys.hash(key)?;
            let is_there = hash.is_some_and(|hash| hash.get(field).is_some());
            Ok(Reply::Int(i64::from(is_there)))
        }),
        b"HLEN" => one(args).and_then(|key| {
            let len = keys.hash(key)?.map_or(0, |hash| hash.0.len());
            Ok(Reply::Int(len as i64))
        }),
        b"HDEL" => hdel(keys, args),
        b"HKEYS" => one(args).and_then(|key| {
            let names = fields(keys, key)?.into_iter().step_by(2);
            Ok(Reply::Array(names.collect()))
        }),
        b"HGETALL" => one(args).and_then(|key| Ok(Reply::Map(fields(keys, key)?))),
        b"HSCAN" => hscan(keys, args),
        b"HINCRBY" => hincrby(keys, args),
        _ => return None,
    })
}

fn hset(keys: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let [key, pairs @ ..] = args else {
        return Err(arity());
    };
    if pairs.is_empty() || pairs.len() % 2 == 1 {
        return Err(arity());
    }
    let hash = at(keys, key)?;
    let mut added = 0;
    for pair in pairs.chunks_exact(2) {
        added += i64::from(hash.set(&pair[0], &pair[1]));
    }
    Ok(Reply::Int(added))
}

fn hincrby(keys: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let [key, field, by] = args else {
        return Err(arity());
    };
    let by = integer(by)?;
    let hash = at(keys, key)?;
    let known = match hash.get(field) {
        Some(text) => integer(text).map_err(|_| "ERR hash value is not an integer".to_owned())?,
        None => 0,
    };
    hash.set(field, (known + by).to_string().as_bytes());
    Ok(Reply::Int(known + by))
}

/// The hash at the key, which is made if it is not there.
fn at<'a>(keys: &'a mut Keyspace, key: &[u8]) -> Result<&'a mut Hash, String> {
    if keys.hash(key)?.is_none() {
        keys.put(key, Value::Hash(Hash::default()), false);
    }
    keys.hash(key)?.ok_or_else(syntax)
}

fn hmget(keys: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let [key, fields @ ..] = args else {
        return Err(arity());
    };
    let hash = keys.hash(key)?;
    let value = |field: &Vec<u8>| {
        let value = hash.as_ref().and_then(|hash| hash.get(field));
        Reply::bulk_or_nil(value.cloned())
    };
    Ok(Reply::Array(fields.iter().map(value).collect()))
}

fn hdel(keys: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let [key, fields @ ..] = args else {
        return Err(arity());
    };
    let Some(hash) = keys.hash(key)? else {
        return Ok(Reply::Int(0));
    };
    let removed = count(fields, |field| hash.remove(field));
    keys.tidy(key);
    Ok(removed)
}

/// All fields at once, which is what a server says of small hashes.
fn hscan(keys: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let [key, cursor, options @ ..] = args else {
        return Err(arity());
    };
    integer(cursor).map_err(|_| "ERR invalid cursor".to_owned())?;
    let is_count = |option: &[Vec<u8>]| option[0].eq_ignore_ascii_case(b"COUNT");
    if options.len() % 2 == 1 || !options.chunks_exact(2).all(is_count) {
        return Err(syntax());
    }
    let fields = Reply::Array(fields(keys, key)?);
    Ok(Reply::Array(vec![Reply::text("0"), fields]))
}

fn fields(keys: &mut Keyspace, key: &[u8]) -> Result<Vec<Reply>, String> {
    let fields = keys.hash(key)?.map_or(&[][..], |hash| &hash.0);
    let pair = |(field, value): &(Vec<u8>, Vec<u8>)| {
        [Reply::Bulk(field.clone()), Reply::Bulk(value.clone())]
    };
    Ok(fields.iter().flat_map(pair).collect())
}

pub(super) fn list(keys: &mut Keyspace, name: &[u8], args: &[Vec<u8>]) -> Option<Outcome> {
    Some(match name {
        b"RPUSH" => push(keys, args, VecDeque::push_back),
        b"LPUSH" => push(keys, args, VecDeque::push_front),
        b"LPOP" => one(args).and_then(|key| pop(keys, key)),
        b"LLEN" => one(args).and_then(|key| {
            let len = keys.list(key)?.map_or(0, |list| list.len());
            Ok(Reply::Int(len as i64))
        }),
        b"LINDEX" => two(args).and_then(|(key, index)| {
            let index = integer(index)?;
            let list = keys.list(key)?;
            let item = list.and_then(|list| {
                let at = range(list.len(), index, index);
                list.get(at.start).filter(|_| !at.is_empty()).cloned()
            });
            Ok(Reply::bulk_or_nil(item))
        }),
        b"LRANGE" => lrange(keys, args),
        b"LPOS" => two(args).and_then(|(key, item)| {
            let list = keys.list(key)?;
            let at = list.and_then(|list| list.iter().position(|known| known == item));
            Ok(at.map_or(Reply::Nil, |at| Reply::Int(at as i64)))
        }),
        b"LREM" => lrem(keys, args),
        _ => return None,
    })
}

fn push(
    keys: &mut Keyspace,
    args: &[Vec<u8>],
    add: fn(&mut VecDeque<Vec<u8>>, Vec<u8>),
) -> Outcome {
    let [key, items @ ..] = args else {
        return Err(arity());
    };
    if keys.list(key)?.is_none() {
        keys.put(key, Value::List(VecDeque::new()), false);
    }
    let list = keys.list(key)?.ok_or_else(syntax)?;
    items.iter().for_each(|item| add(list, item.clone()));
    Ok(Reply::Int(list.len() as i64))
}

fn pop(keys: &mut Keyspace, key: &[u8]) -> Outcome {
    let item = keys.list(key)?.and_then(VecDeque::pop_front);
    keys.tidy(key);
    Ok(Reply::bulk_or_nil(item))
}

fn lrange(keys: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let [key, start, stop] = args else {
        return Err(arity());
    };
    let (start, stop) = (integer(start)?, integer(stop)?);
    let items = keys.list(key)?.map(|list| {
        let range = range(list.len(), start, stop);
        list.range(range).cloned().map(Reply::Bulk).collect()
    });
    Ok(Reply::Array(items.unwrap_or_default()))
}

fn lrem(keys: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let [key, most, item] = args else {
        return Err(arity());
    };
    let most = usize::try_from(integer(most)?).map_err(|_| syntax())?;
    let Some(list) = keys.list(key)? else {
        return Ok(Reply::Int(0));
    };
    let mut removed = 0;
    list.retain(|known| {
        let goes = known == item && (most == 0 || removed < most);
        removed += usize::from(goes);
        !goes
    });
    keys.tidy(key);
    Ok(Reply::Int(removed as i64))
}
