-- Takes back what a request for permits may have done, whose answer nobody waits for any more: its ticket, its reservation, and
-- what it took.
--
-- KEYS, ARGV[1] to ARGV[5]  see the count step
-- ARGV[6]  the ticket, if it may be in line; absent if not
--
-- Reply: 1 if it had permits, 0 if not.
--
-- May be repeated: what was given back is remembered for a minute, in which a late copy of the request takes nothing either.

if ARGV[6] then
  pcall('ZREM', KEYS[4], ARGV[6])
end
local _, _, _, _, hold = identify(ARGV[2])
local given = hold and take(hold) or 0
local known = tonumber(call('GET', KEYS[3])) or 0
free = free + known
call('SET', KEYS[3], 0, 'PX', 60000)
serve()
finish()
return given + known > 0 and 1 or 0
