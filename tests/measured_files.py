"""Small files of measurements and publications, for tests of readers."""

XML = """<measCollecFile><measData><managedElement localDn="E1"/><measInfo>
  <granPeriod duration="PT15M" endTime="{end}"/>
  <measType p="3">load</measType><measType p="9">bins</measType>
  <measValue measObjLdn="NRCellDU=1"><r p="9">1,2,4</r><r p="3">{value}</r></measValue>
</measInfo></measData></measCollecFile>"""

VALUE = """<measuredValue index="{index}"><measuredValue><basicData>
  <{outer}>{error}<{inner}>{value}</{inner}></{outer}></basicData></measuredValue></measuredValue>"""

SITE = """<d2LogicalModel><payloadPublication><siteMeasurements>
  <measurementSiteReference id="{site}"/>
  <measurementTimeDefault>{time}</measurementTimeDefault>{values}
</siteMeasurements></payloadPublication></d2LogicalModel>"""


def flow(index, value, error=""):
    names = {"outer": "vehicleFlow", "inner": "vehicleFlowRate"}
    return VALUE.format(index=index, value=value, error=error, **names)


def speed(index, value, error=""):
    return VALUE.format(
        index=index, value=value, error=error, outer="averageVehicleSpeed", inner="speed"
    )
