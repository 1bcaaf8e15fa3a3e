-- Removes a lock, whoever holds it, and hands it on to the first in line.
--
-- KEYS[1]  the lock: a hash of holder -> count
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line: a sorted set of tickets by place; with KEYS[2] absent where only the lock's own key can be used: then
--          nothing is granted, and those who wait find it free at their next look
-- ARGV[1]  with Redisson: its channel for releases; '' otherwise
-- ARGV[2]  how grants are published: P, S or C, see the grant step
-- ARGV[3]  how long to keep the counter, in milliseconds; 0 = for ever, as Redisson expects
--
-- Reply, one integer: 1 it was held, 0 it was not.
--
-- May be repeated, with one reserve: somebody may have taken the lock in between, and loses it then. Removing whoever
-- is there is what was asked for.
--
-- DEL would delete anybody's data. HSCAN refuses a key of another type with WRONGTYPE, and a hash is deleted only if all
-- of its fields look like holders: an id with a colon and a count, or the mode of a read-write lock. Other data shows in
-- the first few fields, so a large hash takes no long scan.

local cursor, seen, holders = '0', 0, 0
repeat
  local page = redis.call('HSCAN', KEYS[1], cursor)
  local fields = page[2]
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    seen = seen + 1
    if string.find(field, '.:.') and string.find(value, '^%d+$') then
      holders = holders + 1
    elseif field ~= 'mode' or value ~= 'read' and value ~= 'write' then
      return redis.error_reply('WRONGTYPE the key holds a hash whose fields are not the holders of a lock')
    end
  end
  cursor = page[1]
until cursor == '0'
if seen == 0 then
  return 0
end
if holders == 0 then
  return redis.error_reply('WRONGTYPE the key holds a hash whose fields are not the holders of a lock')
end
redis.call('DEL', KEYS[1])
if not (KEYS[3] and grant(ARGV[2])) and ARGV[1] ~= '' then
  redis.pcall(ARGV[2] == 'S' and 'SPUBLISH' or 'PUBLISH', ARGV[1], '0')
end
return 1
