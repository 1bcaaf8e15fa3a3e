-- Tells who holds a lock and who waits for it. Changes nothing.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line: a sorted set of tickets by place
--
-- Reply, an array: the remaining lease in milliseconds, -1 if it has no expiry, -2 if it is not held; an array of the holders,
-- each followed by its count; the counter, '' if there is none; an array of the first 100 tickets, each followed by its score;
-- how many tickets there are.
--
-- A counter or a line of another type, or that may not be read, counts as empty: the question is for the holder.

local refused = foreign_data()
if refused then
  return refused
end
local fields, holders = redis.call('HSCAN', KEYS[1], 0)[2], {}
for i = 1, #fields, 2 do
  if fields[i] ~= 'mode' then
    holders[#holders + 1] = fields[i]
    holders[#holders + 1] = fields[i + 1]
  end
end
local counter = redis.pcall('GET', KEYS[2])
local tickets = redis.pcall('ZRANGE', KEYS[3], 0, 99, 'WITHSCORES')
local waiting = redis.pcall('ZCARD', KEYS[3])
return {
  redis.call('PTTL', KEYS[1]),
  holders,
  type(counter) == 'string' and counter or '',
  tickets.err and {} or tickets,
  type(waiting) == 'number' and waiting or 0,
}
