-- The steps that make a hold of a read-write lock.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count
-- KEYS[2]  the counter of its fencing tokens
-- KEYS[3]  the line: a sorted set of tickets by place
-- ARGV[1]  the hold of the caller
--
-- Steps of these scripts share what is known of the lock, and keep it up to date: `ttl`, its expiry in milliseconds or -2 if it
-- is absent, and `mode`, read or write, or anything else where it is absent or no read-write lock.

local keys_prefix = (string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}') .. ':'

-- The timeout key of one read of `holder`. Redisson deletes the lock under readers that have none.
local function timeout_key(holder, number)
  return keys_prefix .. holder .. ':rwlock_timeout:' .. number
end

-- Both return false if something cannot be written, and the error: nothing has changed then. While a slot migrates that is the
-- timeout key, and at its source a lock that the same script has removed.
local function enter_to_read(id, lease)
  local set = redis.pcall('SET', timeout_key(id, 1), '1', 'PX', lease)
  if set.err then
    return false, set
  end
  if ttl == -2 then
    set = redis.pcall('HSET', KEYS[1], 'mode', 'read', id, '1')
  else
    set = redis.pcall('HSET', KEYS[1], id, '1')
  end
  if type(set) ~= 'number' then
    redis.pcall('DEL', timeout_key(id, 1))
    return false, set
  end
  mode = 'read'
  if ttl < tonumber(lease) then
    redis.call('PEXPIRE', KEYS[1], lease)
    ttl = tonumber(lease)
  end
  return true
end

local function enter_to_write(id, lease)
  local set = redis.pcall('HSET', KEYS[1], 'mode', 'write', id .. ':write', '1')
  if type(set) ~= 'number' then
    return false, set
  end
  redis.call('PEXPIRE', KEYS[1], lease)
  mode, ttl = 'write', tonumber(lease)
  return true
end

-- The token of the latest writer. Where the counter cannot be used, the time, from which no earlier one is far.
local function token_of_latest_writer()
  local counter = redis.pcall('GET', KEYS[2])
  if type(counter) == 'string' and string.find(counter, '^%d+$') and tonumber(counter) <= 9007199254740991 then
    return math.max(tonumber(counter), 1)
  end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- 1 if others wait, 0 if not or if that cannot be known.
local function others_wait()
  local waiting = redis.pcall('ZCARD', KEYS[3])
  return type(waiting) == 'number' and waiting > 0 and 1 or 0
end

