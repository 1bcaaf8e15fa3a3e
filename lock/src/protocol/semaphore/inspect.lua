-- Tells who holds permits and who waits for some. Changes nothing.
--
-- KEYS[1]  the permits that are taken: a sorted set of 16 bytes -> time of expiry in milliseconds
-- KEYS[2]  the line: a sorted set of tickets by place; absent where only the other key can be used
--
-- Reply, an array: the time in milliseconds; an array of the first 1000 permits that live, by their expiry, each followed by
-- that; an array of the first 100 tickets, each followed by its score; how many tickets there are.
--
-- A line of another type, or that may not be read, counts as empty: the question is for the holders.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local after = '(' .. string.format('%.0f', now)
local permits = redis.call('ZRANGEBYSCORE', KEYS[1], after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1000)
local tickets = KEYS[2] and redis.pcall('ZRANGE', KEYS[2], 0, 99, 'WITHSCORES') or {}
local waiting = KEYS[2] and redis.pcall('ZCARD', KEYS[2])
return { now, permits, tickets.err and {} or tickets, type(waiting) == 'number' and waiting or 0 }
