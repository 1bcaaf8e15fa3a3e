-- The step of those who wait: a ticket in the line.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- KEYS[3]  the line: a sorted set of tickets by place
--
-- score    to keep; nil for one at the end
-- ttl      the remaining lease of the holder in milliseconds
--
-- Returns {remaining lease of the holder in milliseconds, tickets ahead, score of the ticket, the server's time in
-- microseconds, 1 if the ticket was not there before}. A ticket that is there keeps its score. The score of a new one is the
-- time, but above all in the line: a clock that was set back lets nobody in front. Or an error for a hash that is no lock, if
-- nobody waits yet.

local function join(ticket, score, ttl)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  if not score then
    local last = redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
    -- Tickets that are in line already have found a lock there.
    local refused = not last and foreign_data()
    if refused then
      return refused
    end
    score = last and math.max(now, tonumber(last) + 1) or now
  end
  local missing = redis.call('ZADD', KEYS[3], 'NX', score, ticket)
  redis.call('PEXPIRE', KEYS[3], 60000)
  if missing == 0 then
    score = tonumber(redis.call('ZSCORE', KEYS[3], ticket))
  end
  return { ttl, redis.call('ZRANK', KEYS[3], ticket), score, now, missing }
end

