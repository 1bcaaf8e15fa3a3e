-- Confirms a granted hold: it has its whole lease from now on.
--
-- KEYS[1]  the permits that are taken, see the renewal step
-- ARGV[1]  the hold
-- ARGV[2]  its permits
-- ARGV[3]  its lease from now on, in milliseconds
--
-- Reply: {lease in ms}; 0 if one of its permits is gone.
--
-- May be repeated: a lease only ever grows, and a hold that is gone is never created again. Something is written in any case:
-- `WAIT` may follow, and newer servers confirm at once what wrote nothing.

local left, refused = renew(KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), true)
return refused or left and { left } or 0
