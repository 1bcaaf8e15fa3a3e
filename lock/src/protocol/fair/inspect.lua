-- Tells who holds a fair lock and who waits for it, Redisson's clients too. Changes nothing.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line: a sorted set of tickets and fences by place
-- KEYS[4]  Redisson's queue: a list of its holders, and of a marker for each fence
--
-- Reply, an array: the remaining lease in milliseconds, -1 if it has no expiry, -2 if it is not held; an array of the holders,
-- each followed by its count; the counter, '' if there is none; an array of the first tickets and fences, each followed by its
-- score; how many wait; an array of the first 100 of the queue.
--
-- Any other key of another type, or that may not be read, counts as empty: the question is for the holder.

local refused = foreign_data()
if refused then
  return refused
end

local function number(value)
  return type(value) == 'number' and value or 0
end

local function list(value)
  return value.err and {} or value
end

local fields, holders = redis.call('HSCAN', KEYS[1], 0)[2], {}
for i = 1, #fields, 2 do
  if fields[i] ~= 'mode' then
    holders[#holders + 1] = fields[i]
    holders[#holders + 1] = fields[i + 1]
  end
end
local counter = redis.pcall('GET', KEYS[2])
local waiting = number(redis.pcall('ZCARD', KEYS[3])) + number(redis.pcall('LLEN', KEYS[4]))
for run = 0, 15 do
  -- The fence in the line, and its marker in the queue.
  if tonumber(redis.pcall('ZSCORE', KEYS[3], '#' .. run)) then
    waiting = waiting - 2
  end
end
return {
  redis.call('PTTL', KEYS[1]),
  holders,
  type(counter) == 'string' and counter or '',
  list(redis.pcall('ZRANGE', KEYS[3], 0, 115, 'WITHSCORES')),
  math.max(waiting, 0),
  list(redis.pcall('LRANGE', KEYS[4], 0, 99)),
}
