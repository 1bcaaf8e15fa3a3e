//! Sorted sets.

use super::super::keyspace::{Keyspace, Sorted, Value};
use super::super::reply::{Outcome, Reply};
use super::{arity, count, integer, one, range, syntax, two};

type Member = (f64, Vec<u8>);

pub(super) fn run(keys: &mut Keyspace, name: &[u8], args: &[Vec<u8>]) -> Option<Outcome> {
    Some(match name {
        b"ZADD" => add(keys, args),
        b"ZREM" => remove(keys, args),
        b"ZCARD" => one(args).and_then(|key| {
            let len = keys.sorted(key)?.map_or(0, |sorted| sorted.0.len());
            Ok(Reply::Int(len as i64))
        }),
        b"ZSCORE" => two(args).and_then(|(key, member)| {
            let sorted = keys.sorted(key)?;
            let score = sorted.and_then(|sorted| sorted.score(member));
            Ok(score.map_or(Reply::Nil, Reply::score))
        }),
        b"ZRANK" => two(args).and_then(|(key, member)| {
            let sorted = keys.sorted(key)?;
            let rank = sorted.and_then(|sorted| sorted.rank(member));
            Ok(rank.map_or(Reply::Nil, |rank| Reply::Int(rank as i64)))
        }),
        b"ZPOPMIN" => one(args).and_then(|key| pop(keys, key)),
        b"ZRANGE" => by_rank(keys, args, false),
        b"ZREVRANGE" => by_rank(keys, args, true),
        b"ZRANGEBYSCORE" => by_score(keys, args),
        b"ZREMRANGEBYSCORE" => remove_by_score(keys, args),
        b"ZCOUNT" => counted(keys, args),
        _ => return None,
    })
}

fn add(keys: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let [key, rest @ ..] = args else {
        return Err(arity());
    };
    let (mut if_new, mut if_known) = (false, false);
    let mut rest = rest;
    while let [option, more @ ..] = rest {
        match option.to_ascii_uppercase().as_slice() {
            b"NX" => if_new = true,
            b"XX" => if_known = true,
            _ => break,
        }
        rest = more;
    }
    if rest.is_empty() || rest.len() % 2 == 1 {
        return Err(syntax());
    }
    let pairs: Result<Vec<_>, String> = rest
        .chunks_exact(2)
        .map(|pair| Ok((score(&pair[0])?, &pair[1])))
        .collect();
    let pairs = pairs?;
    if keys.sorted(key)?.is_none() {
        if if_known {
            return Ok(Reply::Int(0));
        }
        keys.put(key, Value::Sorted(Sorted::default()), false);
    }
    let sorted = keys.sorted(key)?.ok_or_else(syntax)?;
    let mut added = 0;
    for (score, member) in pairs {
        let is_known = sorted.rank(member).is_some();
        if if_new && is_known || if_known && !is_known {
            continue;
        }
        added += i64::from(!is_known);
        sorted.set(member, score);
    }
    Ok(Reply::Int(added))
}

fn remove(keys: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let [key, members @ ..] = args else {
        return Err(arity());
    };
    let Some(sorted) = keys.sorted(key)? else {
        return Ok(Reply::Int(0));
    };
    let removed = count(members, |member| sorted.remove(member));
    keys.tidy(key);
    Ok(removed)
}

fn pop(keys: &mut Keyspace, key: &[u8]) -> Outcome {
    let first = keys
        .sorted(key)?
        .filter(|sorted| !sorted.0.is_empty())
        .map(|sorted| sorted.0.remove(0));
    keys.tidy(key);
    Ok(listed(first.as_slice(), true))
}

fn by_rank(keys: &mut Keyspace, args: &[Vec<u8>], from_end: bool) -> Outcome {
    let [key, start, stop, options @ ..] = args else {
        return Err(arity());
    };
    let with_scores = with_scores(options)?;
    let (start, stop) = (integer(start)?, integer(stop)?);
    let mut members = keys.sorted(key)?.map_or_else(Vec::new, |it| it.0.clone());
    if from_end {
        members.reverse();
    }
    let range = range(members.len(), start, stop);
    Ok(listed(&members[range], with_scores))
}

fn by_score(keys: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let [key, min, max, options @ ..] = args else {
        return Err(arity());
    };
    let (options, skipped, most) = match options {
        [options @ .., limit, skipped, most] if limit.eq_ignore_ascii_case(b"LIMIT") => {
            (options, integer(skipped)?, integer(most)?)
        }
        options => (options, 0, -1),
    };
    let with_scores = with_scores(options)?;
    let within = within(min, max)?;
    let members = keys.sorted(key)?.map_or(&[][..], |sorted| &sorted.0);
    let members: Vec<Member> = members
        .iter()
        .filter(|(score, _)| within(*score))
        .skip(usize::try_from(skipped).map_err(|_| syntax())?)
        .take(usize::try_from(most).unwrap_or(usize::MAX))
        .cloned()
        .collect();
    Ok(listed(&members, with_scores))
}

fn counted(keys: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let [key, min, max] = args else {
        return Err(arity());
    };
    let within = within(min, max)?;
    let members = keys.sorted(key)?.map_or(&[][..], |sorted| &sorted.0);
    let counted = members.iter().filter(|(score, _)| within(*score)).count();
    Ok(Reply::Int(counted as i64))
}

fn remove_by_score(keys: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let [key, min, max] = args else {
        return Err(arity());
    };
    let within = within(min, max)?;
    let Some(sorted) = keys.sorted(key)? else {
        return Ok(Reply::Int(0));
    };
    let before = sorted.0.len();
    sorted.0.retain(|(score, _)| !within(*score));
    let removed = before - sorted.0.len();
    keys.tidy(key);
    Ok(Reply::Int(removed as i64))
}

fn with_scores(options: &[Vec<u8>]) -> Result<bool, String> {
    match options {
        [] => Ok(false),
        [option] if option.eq_ignore_ascii_case(b"WITHSCORES") => Ok(true),
        _ => Err(syntax()),
    }
}

/// Whether a score is between the bounds, either of which is excluded if a parenthesis opens it.
fn within(min: &[u8], max: &[u8]) -> Result<impl Fn(f64) -> bool + use<>, String> {
    let bound = |text: &[u8]| match text.strip_prefix(b"(") {
        Some(text) => score(text).map(|at| (at, true)),
        None => score(text).map(|at| (at, false)),
    };
    let bad = |_| "ERR min or max is not a float".to_owned();
    let (min, max) = (bound(min).map_err(bad)?, bound(max).map_err(bad)?);
    Ok(move |score: f64| {
        (score > min.0 || score == min.0 && !min.1) && (score < max.0 || score == max.0 && !max.1)
    })
}

fn score(text: &[u8]) -> Result<f64, String> {
    let score = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse::<f64>().ok());
    score
        .filter(|score| !score.is_nan())
        .ok_or_else(|| "ERR value is not a valid float".to_owned())
}

fn listed(members: &[Member], with_scores: bool) -> Reply {
    let item = |(score, member): &Member| {
        let score = with_scores.then(|| Reply::score(*score));
        [Reply::Bulk(member.clone())].into_iter().chain(score)
    };
    Reply::Array(members.iter().flat_map(item).collect())
}
