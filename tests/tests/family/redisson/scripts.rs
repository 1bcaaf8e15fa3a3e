//! Redisson's scripts by their steps: what each does to the keys, whom it tells, and what it replies. Keys and arguments are
//! those of the recorded calls.

/// `release` of a lock was done before: its reply is kept in the last key for a while.
macro_rules! unlock {
    ($latch:literal, $steps:literal) => {
        concat!(
            "local kept = redis.call('GET', KEYS[",
            $latch,
            "]) if kept then return tonumber(kept) end ",
            "local function done(how) ",
            "redis.call('SET', KEYS[",
            $latch,
            "], how, 'PX', ARGV[#ARGV]) return how end ",
            $steps
        )
    };
}

/// Fair locks: the first waiters whose time is over go. `now` is set before.
macro_rules! pruned {
    ($now:literal, $queue:literal, $times:literal, $steps:literal) => {
        concat!(
            "local now, queue, times = tonumber(ARGV[",
            $now,
            "]), KEYS[",
            $queue,
            "], KEYS[",
            $times,
            "] while true do local head = redis.call('LINDEX', queue, 0) if not head then break end ",
            "local due = redis.call('ZSCORE', times, head) ",
            "if not due or tonumber(due) > now then break end ",
            "redis.call('ZREM', times, head) redis.call('LPOP', queue) end ",
            $steps
        )
    };
}

/// Permits with a lease: those that are over come back, up to `limit` of them.
macro_rules! reclaimed {
    ($now:literal, $limit:literal, $times:literal, $channel:literal, $publish:literal, $steps:literal) => {
        concat!(
            "local over = redis.call('ZRANGEBYSCORE', KEYS[",
            $times,
            "], 0, ARGV[",
            $now,
            "], 'LIMIT', 0, ",
            $limit,
            ") if #over > 0 then redis.call('ZREM', KEYS[",
            $times,
            "], unpack(over)) local free = redis.call('INCRBY', KEYS[1], #over) ",
            "if free > 0 then redis.call(ARGV[",
            $publish,
            "], KEYS[",
            $channel,
            "], free) end end ",
            $steps
        )
    };
}

const LOCK: &str = "if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then \
    redis.call('HINCRBY', KEYS[1], ARGV[2], 1) redis.call('PEXPIRE', KEYS[1], ARGV[1]) return false end \
    return redis.call('PTTL', KEYS[1])";
const UNLOCK: &str = unlock!(
    "3",
    "if redis.call('HEXISTS', KEYS[1], ARGV[3]) == 0 then return false end \
    if redis.call('HINCRBY', KEYS[1], ARGV[3], -1) > 0 then \
      redis.call('PEXPIRE', KEYS[1], ARGV[2]) return done(0) end \
    redis.call('DEL', KEYS[1]) redis.call(ARGV[4], KEYS[2], ARGV[1]) return done(1)"
);
const FORCE: &str = "if redis.call('DEL', KEYS[1]) == 0 then return 0 end \
    redis.call(ARGV[2], KEYS[2], ARGV[1]) return 1";
const RENEW: &str = "local held = {} for i, key in ipairs(KEYS) do \
    held[i] = redis.call('HEXISTS', key, ARGV[i + 1]) \
    if held[i] == 1 then redis.call('PEXPIRE', key, ARGV[1]) end end return held";
const SPIN_UNLOCK: &str = unlock!(
    "2",
    "if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return false end \
    if redis.call('HINCRBY', KEYS[1], ARGV[2], -1) > 0 then \
      redis.call('PEXPIRE', KEYS[1], ARGV[1]) return done(0) end \
    redis.call('DEL', KEYS[1]) return done(1)"
);
const FENCED: &str = "if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then \
    redis.call('INCR', KEYS[2]) redis.call('HINCRBY', KEYS[1], ARGV[2], 1) \
    redis.call('PEXPIRE', KEYS[1], ARGV[1]) return false end \
    return redis.call('PTTL', KEYS[1])";
const FENCED_TOKEN: &str = "if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then \
    local token = redis.call('INCR', KEYS[2]) redis.call('HINCRBY', KEYS[1], ARGV[2], 1) \
    redis.call('PEXPIRE', KEYS[1], ARGV[1]) return {-1, token} end \
    return {redis.call('PTTL', KEYS[1]), -1}";

const FAIR: &str = pruned!(
    "4",
    "2",
    "3",
    "local id, wait = ARGV[2], tonumber(ARGV[3]) \
    if redis.call('EXISTS', KEYS[1]) == 0 and (redis.call('EXISTS', queue) == 0 \
        or redis.call('LINDEX', queue, 0) == id) then \
      redis.call('LPOP', queue) redis.call('ZREM', times, id) \
      for _, other in ipairs(redis.call('ZRANGE', times, 0, -1)) do \
        redis.call('ZINCRBY', times, -wait, other) end \
      redis.call('HSET', KEYS[1], id, 1) redis.call('PEXPIRE', KEYS[1], ARGV[1]) return false end \
    if redis.call('HEXISTS', KEYS[1], id) == 1 then \
      redis.call('HINCRBY', KEYS[1], id, 1) redis.call('PEXPIRE', KEYS[1], ARGV[1]) return false end \
    if redis.call('ZSCORE', times, id) then return math.max(0, redis.call('PTTL', KEYS[1])) end \
    local last, base = redis.call('LINDEX', queue, -1), nil \
    local due = last and last ~= id and redis.call('ZSCORE', times, last) \
    if due then base = tonumber(due) - now else base = redis.call('PTTL', KEYS[1]) end \
    if redis.call('ZADD', times, base + wait + now, id) == 1 then redis.call('RPUSH', queue, id) end \
    return base"
);
const FAIR_ONCE: &str = pruned!(
    "3",
    "2",
    "3",
    "local id, wait = ARGV[2], tonumber(ARGV[4]) \
    if redis.call('EXISTS', KEYS[1]) == 0 and (redis.call('EXISTS', queue) == 0 \
        or redis.call('LINDEX', queue, 0) == id) then \
      redis.call('LPOP', queue) redis.call('ZREM', times, id) \
      for _, other in ipairs(redis.call('ZRANGE', times, 0, -1)) do \
        redis.call('ZINCRBY', times, -wait, other) end \
      redis.call('HSET', KEYS[1], id, 1) redis.call('PEXPIRE', KEYS[1], ARGV[1]) return false end \
    if redis.call('HEXISTS', KEYS[1], id) == 1 then \
      redis.call('HINCRBY', KEYS[1], id, 1) redis.call('PEXPIRE', KEYS[1], ARGV[1]) return false end \
    return 1"
);
const FAIR_GIVE_UP: &str = "local id, wait, found = ARGV[1], tonumber(ARGV[2]), false \
    for _, other in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do \
      if found then redis.call('ZINCRBY', KEYS[2], -wait, other) end found = found or other == id end \
    redis.call('ZREM', KEYS[2], id) redis.call('LREM', KEYS[1], 0, id) return false";
const FAIR_UNLOCK: &str = unlock!(
    "5",
    "local now, queue, times = tonumber(ARGV[4]), KEYS[2], KEYS[3] \
    while true do local head = redis.call('LINDEX', queue, 0) if not head then break end \
      local due = redis.call('ZSCORE', times, head) \
      if not due or tonumber(due) > now then break end \
      redis.call('ZREM', times, head) redis.call('LPOP', queue) end \
    local function tell() local head = redis.call('LINDEX', queue, 0) \
      if head then redis.call(ARGV[5], KEYS[4] .. ':' .. head, ARGV[1]) end return done(1) end \
    if redis.call('EXISTS', KEYS[1]) == 0 then return tell() end \
    if redis.call('HEXISTS', KEYS[1], ARGV[3]) == 0 then return false end \
    if redis.call('HINCRBY', KEYS[1], ARGV[3], -1) > 0 then \
      redis.call('PEXPIRE', KEYS[1], ARGV[2]) return done(0) end \
    redis.call('DEL', KEYS[1]) return tell()"
);
const FAIR_FORCE: &str = pruned!(
    "2",
    "2",
    "3",
    "if redis.call('DEL', KEYS[1]) == 0 then return 0 end \
    local head = redis.call('LINDEX', queue, 0) \
    if head then redis.call(ARGV[3], KEYS[4] .. ':' .. head, ARGV[1]) end return 1"
);

const READ: &str = "local mode = redis.call('HGET', KEYS[1], 'mode') \
    local function hold(count, lease) local key = KEYS[2] .. ':' .. count \
      redis.call('SET', key, 1) redis.call('PEXPIRE', key, ARGV[1]) \
      redis.call('PEXPIRE', KEYS[1], lease) return false end \
    if not mode then redis.call('HSET', KEYS[1], 'mode', 'read') \
      redis.call('HSET', KEYS[1], ARGV[2], 1) return hold(1, ARGV[1]) end \
    if mode == 'read' or mode == 'write' and redis.call('HEXISTS', KEYS[1], ARGV[3]) == 1 then \
      local left = redis.call('PTTL', KEYS[1]) \
      return hold(redis.call('HINCRBY', KEYS[1], ARGV[2], 1), math.max(left, ARGV[1])) end \
    return redis.call('PTTL', KEYS[1])";
const READ_UNLOCK: &str = unlock!(
    "5",
    "local mode, id = redis.call('HGET', KEYS[1], 'mode'), ARGV[2] \
    if not mode then redis.call(ARGV[3], KEYS[2], ARGV[1]) done(1) return false end \
    if redis.call('HEXISTS', KEYS[1], id) == 0 then return false end \
    local count = redis.call('HINCRBY', KEYS[1], id, -1) \
    if count == 0 then redis.call('HDEL', KEYS[1], id) end \
    redis.call('DEL', KEYS[3] .. ':' .. (count + 1)) \
    if redis.call('HLEN', KEYS[1]) > 1 then local most = -3 \
      for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do \
        for i = tonumber(redis.call('HGET', KEYS[1], field)) or 0, 1, -1 do \
          local key = KEYS[4] .. ':' .. field .. ':rwlock_timeout:' .. i \
          most = math.max(redis.call('PTTL', key), most) end end \
      if most > 0 then redis.call('PEXPIRE', KEYS[1], most) return done(0) end \
      if mode == 'write' then return done(0) end end \
    redis.call('DEL', KEYS[1]) redis.call(ARGV[3], KEYS[2], ARGV[1]) return done(1)"
);
const WRITE: &str = "local mode = redis.call('HGET', KEYS[1], 'mode') \
    if not mode then redis.call('HSET', KEYS[1], 'mode', 'write') redis.call('HSET', KEYS[1], ARGV[2], 1) \
      redis.call('PEXPIRE', KEYS[1], ARGV[1]) return false end \
    if mode == 'write' and redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then \
      redis.call('HINCRBY', KEYS[1], ARGV[2], 1) \
      redis.call('PEXPIRE', KEYS[1], redis.call('PTTL', KEYS[1]) + ARGV[1]) return false end \
    return redis.call('PTTL', KEYS[1])";
const WRITE_UNLOCK: &str = unlock!(
    "3",
    "local mode = redis.call('HGET', KEYS[1], 'mode') \
    if not mode then redis.call(ARGV[4], KEYS[2], ARGV[1]) done(1) return false end \
    if mode ~= 'write' or redis.call('HEXISTS', KEYS[1], ARGV[3]) == 0 then return false end \
    if redis.call('HINCRBY', KEYS[1], ARGV[3], -1) > 0 then \
      redis.call('PEXPIRE', KEYS[1], ARGV[2]) return done(0) end \
    redis.call('HDEL', KEYS[1], ARGV[3]) \
    if redis.call('HLEN', KEYS[1]) == 1 then \
      redis.call('DEL', KEYS[1]) redis.call(ARGV[4], KEYS[2], ARGV[1]) \
    else redis.call('HSET', KEYS[1], 'mode', 'read') end return done(1)"
);
const READ_FORCE: &str = "if redis.call('HGET', KEYS[1], 'mode') ~= 'read' then return 0 end \
    redis.call('DEL', KEYS[1]) redis.call(ARGV[2], KEYS[2], ARGV[1]) return 1";
const WRITE_FORCE: &str = "if redis.call('HGET', KEYS[1], 'mode') ~= 'write' then return 0 end \
    redis.call('DEL', KEYS[1]) redis.call(ARGV[2], KEYS[2], ARGV[1]) return 1";
const READ_IS_LOCKED: &str = "local mode = redis.call('HGET', KEYS[1], 'mode') \
    if mode == 'read' or mode == 'write' and redis.call('HLEN', KEYS[1]) > 2 then return 1 end return 0";
const READ_RENEW: &str = "local held, arg = {}, 2 \
    for i = 1, #KEYS, 2 do local any = 0 \
      for n = arg + 1, arg + tonumber(ARGV[arg]) do \
        for count = tonumber(redis.call('HGET', KEYS[i], ARGV[n]) or 0), 1, -1 do any = 1 \
          redis.call('PEXPIRE', KEYS[i + 1] .. ':' .. ARGV[n] .. ':rwlock_timeout:' .. count, ARGV[1]) end end \
      if any == 1 then redis.call('PEXPIRE', KEYS[i], ARGV[1]) end \
      arg = arg + tonumber(ARGV[arg]) + 1 held[#held + 1] = any end return held";

const SEM_SET: &str = "if redis.call('GET', KEYS[1]) then return 0 end \
    redis.call('SET', KEYS[1], ARGV[1]) redis.call(ARGV[2], KEYS[2], ARGV[1]) return 1";
const SEM_SET_TTL: &str = "if redis.call('GET', KEYS[1]) then return 0 end \
    redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3]) redis.call(ARGV[2], KEYS[2], ARGV[1]) return 1";
const SEM_ACQUIRE: &str = "local free = redis.call('GET', KEYS[1]) \
    if free and tonumber(free) >= tonumber(ARGV[1]) then redis.call('DECRBY', KEYS[1], ARGV[1]) return 1 end \
    return 0";
const SEM_RELEASE: &str =
    "redis.call(ARGV[2], KEYS[2], redis.call('INCRBY', KEYS[1], ARGV[1])) return false";
const SEM_RELEASE_IF: &str = "if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end \
    redis.call(ARGV[2], KEYS[2], redis.call('INCRBY', KEYS[1], ARGV[1])) return 1";
const SEM_ADD: &str = "local free = (redis.call('GET', KEYS[1]) or 0) + ARGV[1] \
    redis.call('SET', KEYS[1], free) redis.call(ARGV[2], KEYS[2], free) return false";
const SEM_DRAIN: &str =
    "local free = redis.call('GET', KEYS[1]) redis.call('SET', KEYS[1], 0) return free";

const PES_ACQUIRE: &str = reclaimed!(
    "3",
    "ARGV[1]",
    "2",
    "3",
    "5",
    "local free = redis.call('GET', KEYS[1]) \
    if free and tonumber(free) >= tonumber(ARGV[1]) then redis.call('DECRBY', KEYS[1], ARGV[1]) \
      for i = 6, #ARGV do redis.call('ZADD', KEYS[2], ARGV[2], ARGV[i]) end \
      local left = redis.call('PTTL', KEYS[1]) if left > 0 then redis.call('PEXPIRE', KEYS[2], left) end \
      return 'OK' end \
    local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES') \
    return first[1] and first[2] ~= ARGV[4] and ':' .. first[2] or false"
);
const PES_RELEASE: &str = "local due = redis.call('ZSCORE', KEYS[3], ARGV[1]) \
    if redis.call('ZREM', KEYS[3], ARGV[1]) == 0 then return 0 end \
    redis.call(ARGV[4], KEYS[2], redis.call('INCRBY', KEYS[1], 1)) \
    return tonumber(due) <= tonumber(ARGV[3]) and 0 or 1";
const PES_RELEASE_MANY: &str = "for i = 4, #ARGV do \
      if not redis.call('ZSCORE', KEYS[3], ARGV[i]) then return 0 end end \
    redis.call('ZREM', KEYS[3], unpack(ARGV, 4)) redis.call('INCRBY', KEYS[1], ARGV[1]) \
    redis.call(ARGV[3], KEYS[2], ARGV[1]) return tonumber(ARGV[1])";
const PES_AVAILABLE: &str = reclaimed!(
    "1",
    "-1",
    "2",
    "3",
    "2",
    "return redis.call('GET', KEYS[1])"
);
const PES_ACQUIRED: &str = reclaimed!(
    "1",
    "-1",
    "2",
    "3",
    "2",
    "return redis.call('ZCOUNT', KEYS[2], 0, '+inf')"
);
const PES_PERMITS: &str = reclaimed!(
    "1",
    "-1",
    "2",
    "3",
    "2",
    "return redis.call('GET', KEYS[1]) + redis.call('ZCOUNT', KEYS[2], 0, '+inf')"
);
const PES_LEASE: &str = reclaimed!(
    "3",
    "-1",
    "2",
    "3",
    "4",
    "local due = redis.call('ZSCORE', KEYS[2], ARGV[1]) \
    if not due then return 0 end if due == ARGV[2] then return -1 end return tonumber(due) - ARGV[3]"
);
const PES_UPDATE: &str = reclaimed!(
    "3",
    "-1",
    "2",
    "3",
    "4",
    "if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then return 0 end \
    redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1]) return 1"
);
const PES_ADD: &str = "redis.call('SET', KEYS[1], (redis.call('GET', KEYS[1]) or 0) + ARGV[1]) \
    if tonumber(ARGV[1]) > 0 then redis.call(ARGV[2], KEYS[2], ARGV[1]) end return false";
const PES_SET: &str = "local free = redis.call('GET', KEYS[1]) \
    if not free then redis.call('SET', KEYS[1], ARGV[1]) \
    else local taken = redis.call('ZCOUNT', KEYS[3], 0, '+inf') \
      redis.call('INCRBY', KEYS[1], ARGV[1] - free - taken) end \
    redis.call(ARGV[2], KEYS[2], ARGV[1]) return false";

const LATCH_SET: &str = "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end \
    redis.call('SET', KEYS[1], ARGV[2]) redis.call(ARGV[3], KEYS[2], ARGV[1]) return 1";
const LATCH_DOWN: &str = "local left = redis.call('DECR', KEYS[1]) \
    if left <= 0 then redis.call('DEL', KEYS[1]) end \
    if left == 0 then redis.call(ARGV[2], KEYS[2], ARGV[1]) end return false";

/// The text of a recorded script.
pub(super) fn text(label: &str) -> &'static str {
    match label {
        "lock.acquire" | "spin.acquire" => LOCK,
        "lock.unlock" => UNLOCK,
        "lock.force" | "latch.delete" => FORCE,
        "lock.renew" => RENEW,
        "spin.unlock" => SPIN_UNLOCK,
        "spin.force" => "return redis.call('DEL', KEYS[1])",
        "object.pexpire" => "return redis.call('PEXPIRE', KEYS[1], ARGV[1])",
        "fenced.acquire" => FENCED,
        "fenced.acquire_token" => FENCED_TOKEN,
        "fair.acquire" => FAIR,
        "fair.acquire_once" => FAIR_ONCE,
        "fair.give_up" => FAIR_GIVE_UP,
        "fair.unlock" => FAIR_UNLOCK,
        "fair.force" => FAIR_FORCE,
        "read.acquire" => READ,
        "read.unlock" => READ_UNLOCK,
        "read.force" => READ_FORCE,
        "read.is_locked" => READ_IS_LOCKED,
        "read.renew" => READ_RENEW,
        "write.acquire" => WRITE,
        "write.unlock" => WRITE_UNLOCK,
        "write.force" => WRITE_FORCE,
        "sem.try_set" => SEM_SET,
        "sem.try_set_ttl" => SEM_SET_TTL,
        "sem.try_acquire" => SEM_ACQUIRE,
        "sem.release" => SEM_RELEASE,
        "sem.release_if_exists" => SEM_RELEASE_IF,
        "sem.add" => SEM_ADD,
        "sem.drain" => SEM_DRAIN,
        "pes.try_acquire" => PES_ACQUIRE,
        "pes.release_one" => PES_RELEASE,
        "pes.release_many" => PES_RELEASE_MANY,
        "pes.available" => PES_AVAILABLE,
        "pes.acquired" => PES_ACQUIRED,
        "pes.permits" => PES_PERMITS,
        "pes.get_lease" => PES_LEASE,
        "pes.update_lease" => PES_UPDATE,
        "pes.add" => PES_ADD,
        "pes.set" => PES_SET,
        "latch.try_set" => LATCH_SET,
        "latch.count_down" => LATCH_DOWN,
        _ => panic!("no script {label}"),
    }
}
