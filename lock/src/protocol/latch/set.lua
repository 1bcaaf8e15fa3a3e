-- Sets a latch to a count, if it is open or in any case.
--
-- KEYS[1]  the latch
-- KEYS[2]  the notes on it
-- ARGV[1]  the request: an id never used for another one
-- ARGV[2]  the count, at least 1
-- ARGV[3]  how to publish: P, S or C, see the grant step
-- ARGV[4]  1 if an absent latch with a noted count was lost, 0 if Redisson may have opened it
-- ARGV[5]  1 to set it in any case
-- ARGV[6]  how long to keep it, in milliseconds; 0 = for ever, as Redisson expects
-- ARGV[7]  Redisson's channel; absent = none
--
-- Reply: 1 it is set, 0 it has a count already.
--
-- May be repeated: a request that was carried out has the same answer again. Everything that can fail comes before the first
-- write.

if noted('o:' .. ARGV[1]) then
  keep()
  return 1
end
if count and ARGV[5] ~= '1' then
  return 0
end
-- An opening that no script of ours has seen.
local by_redisson = not count and seen and seen > 0 and ARGV[4] == '0' or anew
if ARGV[6] == '0' then
  call('SET', KEYS[1], ARGV[2])
  call('ZREM', KEYS[2], 'x')
else
  call('SET', KEYS[1], ARGV[2], 'PX', ARGV[6])
  call('ZADD', KEYS[2], string.format('%.0f', ms + tonumber(ARGV[6])), 'x')
end
call('ZREMRANGEBYSCORE', KEYS[2], '-1', '-1')
note(ARGV[1], tonumber(ARGV[2]), by_redisson and next_opening())
keep()
tell('1', ARGV[3], ARGV[7])
return 1
