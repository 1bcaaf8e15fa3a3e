-- The step of a repeated request that finds its hold there: the token, and the lease that is left.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count
-- KEYS[2]  the counter of its fencing tokens
-- KEYS[4]  the timeout key of this hold, for one that reads
-- ARGV[2]  the lease that was asked for, in milliseconds: for a hold that somebody took the expiry from
-- reading  the field of a hold that reads, writing that of one that writes
--
-- The lease is not extended, unless `least` says for how many milliseconds it is to last at least: a late copy of a request would
-- hold the lock for a process that is gone. But something is written: `WAIT` may follow, and newer servers confirm at once what
-- wrote nothing.

local function still_held(least)
  local left = ttl < 0 and tonumber(ARGV[2]) or ttl
  if reading then
    -- A hold without its timeout key is one until a writer notices, and nobody can have entered meanwhile.
    left = math.max(redis.call('PTTL', KEYS[4]), least, 1)
    redis.call('SET', KEYS[4], '1', 'PX', left)
  end
  left = math.max(left, least, 1)
  redis.call('PEXPIRE', KEYS[1], math.max(ttl, left))
  return { token_of_latest_writer(), left, others_wait() }
end

