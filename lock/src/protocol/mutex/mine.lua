-- The step of a repeated acquire or look that finds its hold there: the token, and the lease that is left.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- KEYS[2]  the counter of its fencing tokens
-- ARGV[2]  the lease that was asked for, in milliseconds: for a hold that somebody took the expiry from
--
-- The lease is not extended: a late copy of the request would hold the lock for a process that is gone. But something is
-- written: `WAIT` may follow, and newer servers confirm at once what wrote nothing.

local function held_by_us(ttl)
  local counter = redis.call('GET', KEYS[2])
  local token, refused = counter and string.find(counter, '^%d+$') and tonumber(counter), nil
  if not token or token > 9007199254740991 then
    token, refused = next_token(redis.call('TIME'), 1)
    if refused then
      return refused
    end
    token = tonumber(token)
  end
  ttl = ttl < 0 and tonumber(ARGV[2]) or math.max(ttl, 1)
  redis.call('PEXPIRE', KEYS[1], ttl)
  return { token, ttl }
end

