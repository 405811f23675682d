-- What runs say no team of is of the team that the price book tags the device with: `tagged` has it of some units.
UPDATE stay
SET
    tagged_team = tagged.team,
    team = CASE WHEN stay.team = 'unallocated' THEN tagged.team ELSE stay.team END,
    device_team = CASE WHEN device_team = 'unallocated' THEN tagged.team ELSE device_team END
FROM tagged
WHERE stay.unit = tagged.unit;
