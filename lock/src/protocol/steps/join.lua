-- The step of those who wait: a ticket in the line. The token step before it has the text of the time.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- KEYS[3]  the line: a sorted set of tickets by place
--
-- score    to keep; nil for one at the end
-- ttl      the remaining lease of the holder in milliseconds
--
-- Returns {remaining lease of the holder in milliseconds, tickets ahead, score of the ticket, the server's time in
-- microseconds, 1 if the ticket was not there before}. A ticket that is there keeps its score. The score of a new one is the
-- time, but above all in the line: a clock that was set back lets nobody in front. That shows in the place of the ticket, and
-- only then the score of another is asked for: text of 16 digits takes long to make and to read. Or an error for a hash that is
-- no lock, if nobody waits yet.

local function join(ticket, score, ttl)
  local call = redis.call
  local text = micros(call('TIME'))
  local ahead = call('ZCARD', KEYS[3])
  -- Tickets that are in line already have found a lock there.
  local refused = ahead == 0 and not score and foreign_data()
  if refused then
    return refused
  end
  local missing = call('ZADD', KEYS[3], 'NX', score or text, ticket)
  -- Asking is cheaper than setting it each time.
  if ahead == 0 or call('PTTL', KEYS[3]) < 50000 then
    call('PEXPIRE', KEYS[3], 60000)
  end
  local now = tonumber(text)
  local place = call('ZRANK', KEYS[3], ticket)
  if missing == 0 then
    score = tonumber(call('ZSCORE', KEYS[3], ticket))
  elseif not score then
    score = now
    if place < ahead then
      score = call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2] + 1
      call('ZADD', KEYS[3], score, ticket)
      place = ahead
    end
  end
  return { ttl, place, score, now, missing }
end
