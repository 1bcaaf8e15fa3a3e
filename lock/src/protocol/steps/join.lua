-- The step of those who wait: a ticket in the line. Before it come the time step, and the one that refuses foreign data.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- KEYS[3]  the line: a sorted set of tickets by place
--
-- score    to keep, as text; nil for one at the end
--
-- Returns the tickets ahead, and the end of the reply as text: the score of the ticket, the server's time in microseconds, and 1 if
-- the ticket was not there before. One that is there keeps its score. The score of a new one is the time, but above all in the
-- line: a clock that was set back lets nobody in front. That shows in the place of the ticket, and only then the score of another
-- is asked for. Or returns an error, alone, for a hash that is no lock, if nobody waits yet.

local function join(ticket, score)
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
  local place = call('ZRANK', KEYS[3], ticket)
  if missing == 0 then
    return place, string.format('%.0f %s 0', call('ZSCORE', KEYS[3], ticket), text)
  end
  if not score and place < ahead then
    score = string.format('%.0f', call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2] + 1)
    call('ZADD', KEYS[3], score, ticket)
    place = ahead
  end
  return place, (score or text) .. ' ' .. text .. ' 1'
end
