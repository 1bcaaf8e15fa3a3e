-- Tells who holds a plain lock and who waits for it. Changes nothing.
--
-- KEYS[1]  the lock: a string, the id of its holder
-- KEYS[2]  the counter of its fencing tokens: a decimal string; with KEYS[3] absent where only the lock's own key can be used
-- KEYS[3]  the line: a sorted set of tickets by place
--
-- Reply, an array: the remaining lease in milliseconds, -1 if it has no expiry, -2 if it is not held; an array of the holder and
-- 1, empty if there is none; the counter, '' if there is none; an array of the first 100 tickets, each followed by its score;
-- how many tickets there are.
--
-- A counter or a line of another type, or that may not be read, counts as empty: the question is for the holder.

local holder = redis.call('GET', KEYS[1])
local counter, tickets, waiting = '', {}, 0
if KEYS[3] then
  counter = redis.pcall('GET', KEYS[2])
  tickets = redis.pcall('ZRANGE', KEYS[3], 0, 99, 'WITHSCORES')
  waiting = redis.pcall('ZCARD', KEYS[3])
end
return {
  redis.call('PTTL', KEYS[1]),
  holder and { holder, '1' } or {},
  type(counter) == 'string' and counter or '',
  tickets.err and {} or tickets,
  type(waiting) == 'number' and waiting or 0,
}
