-- Tells who holds a read-write lock and who waits for it. Changes nothing.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line: a sorted set of tickets by place; with KEYS[2] absent where only the lock's own key can be used
--
-- Reply, an array: the remaining lease in milliseconds, -1 if it has no expiry, -2 if it is not held; an array of the first 128
-- holders, each followed by its count and by the milliseconds that are left of its own lease, -2 for a reader that is gone; the
-- counter, '' if there is none; an array of the first 100 tickets, each followed by its score; how many tickets there are.
--
-- A counter or a line of another type, or that may not be read, counts as empty: the question is for the holders.

local refused = foreign_data()
if refused then
  return refused
end
local ttl, holders = redis.call('PTTL', KEYS[1]), {}
local prefix = string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}'
local fields = redis.call('HSCAN', KEYS[1], 0, 'COUNT', 128)[2]
for i = 1, math.min(#fields, 258), 2 do
  local holder, count = fields[i], fields[i + 1]
  if holder ~= 'mode' then
    local left = ttl
    if not string.find(holder, ':write$') then
      left = -2
      for number = math.min(tonumber(count) or 0, 128), 1, -1 do
        local one = redis.pcall('PTTL', prefix .. ':' .. holder .. ':rwlock_timeout:' .. number)
        left = math.max(left, type(one) == 'number' and one or ttl)
      end
    end
    holders[#holders + 1] = holder
    holders[#holders + 1] = count
    holders[#holders + 1] = left
  end
end
local counter = KEYS[2] and redis.pcall('GET', KEYS[2])
local tickets = KEYS[3] and redis.pcall('ZRANGE', KEYS[3], 0, 99, 'WITHSCORES') or {}
local waiting = KEYS[3] and redis.pcall('ZCARD', KEYS[3])
return {
  ttl,
  holders,
  type(counter) == 'string' and counter or '',
  tickets.err and {} or tickets,
  type(waiting) == 'number' and waiting or 0,
}
