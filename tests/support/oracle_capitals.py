"""Countries and their capitals, as they are told: `Country:Capital`, with `/` between two names."""

from __future__ import annotations

PAIRS = """
Afghanistan:Kabul Albania:Tirana Algeria:Algiers Andorra:Andorra_la_Vella Angola:Luanda
Argentina:Buenos_Aires Armenia:Yerevan Australia:Canberra Austria:Vienna Azerbaijan:Baku
Bahrain:Manama Bangladesh:Dhaka Barbados:Bridgetown Belarus:Minsk Belgium:Brussels Belize:Belmopan
Benin:Porto-Novo Bhutan:Thimphu Bolivia:Sucre/La_Paz Bosnia_and_Herzegovina:Sarajevo
Botswana:Gaborone Brazil:Brasilia/Brasília Brunei:Bandar_Seri_Begawan Bulgaria:Sofia
Burkina_Faso:Ouagadougou Burundi:Gitega Cambodia:Phnom_Penh Cameroon:Yaounde/Yaoundé Canada:Ottawa
Cape_Verde:Praia Central_African_Republic:Bangui Chad:N'Djamena Chile:Santiago China:Beijing
Colombia:Bogota/Bogotá Comoros:Moroni Costa_Rica:San_Jose/San_José Croatia:Zagreb Cuba:Havana
Cyprus:Nicosia Czechia:Prague Denmark:Copenhagen Djibouti:Djibouti Dominica:Roseau
Dominican_Republic:Santo_Domingo Ecuador:Quito Egypt:Cairo El_Salvador:San_Salvador
Equatorial_Guinea:Malabo Eritrea:Asmara Estonia:Tallinn Eswatini:Mbabane/Lobamba
Ethiopia:Addis_Ababa Fiji:Suva Finland:Helsinki France:Paris Gabon:Libreville Gambia:Banjul
Georgia:Tbilisi Germany:Berlin Ghana:Accra Greece:Athens Grenada:St._George's/Saint_George's
Guatemala:Guatemala_City Guinea:Conakry Guinea-Bissau:Bissau Guyana:Georgetown
Haiti:Port-au-Prince Honduras:Tegucigalpa Hungary:Budapest Iceland:Reykjavik/Reykjavík
India:New_Delhi Indonesia:Jakarta Iran:Tehran Iraq:Baghdad Ireland:Dublin Italy:Rome
Ivory_Coast:Yamoussoukro Jamaica:Kingston Japan:Tokyo Jordan:Amman Kazakhstan:Astana Kenya:Nairobi
Kiribati:Tarawa Kuwait:Kuwait_City Kyrgyzstan:Bishkek Laos:Vientiane Latvia:Riga Lebanon:Beirut
Lesotho:Maseru Liberia:Monrovia Libya:Tripoli Liechtenstein:Vaduz Lithuania:Vilnius
Luxembourg:Luxembourg Madagascar:Antananarivo Malawi:Lilongwe Malaysia:Kuala_Lumpur
Maldives:Male/Malé Mali:Bamako Malta:Valletta Marshall_Islands:Majuro Mauritania:Nouakchott
Mauritius:Port_Louis Mexico:Mexico_City Micronesia:Palikir Moldova:Chisinau/Chișinău
Monaco:Monaco Mongolia:Ulaanbaatar/Ulan_Bator Montenegro:Podgorica Morocco:Rabat Mozambique:Maputo
Myanmar:Naypyidaw/Naypyitaw Namibia:Windhoek Nauru:Yaren Nepal:Kathmandu Netherlands:Amsterdam
New_Zealand:Wellington Nicaragua:Managua Niger:Niamey Nigeria:Abuja North_Korea:Pyongyang
North_Macedonia:Skopje Norway:Oslo Oman:Muscat Pakistan:Islamabad Palau:Ngerulmud
Panama:Panama_City Papua_New_Guinea:Port_Moresby Paraguay:Asuncion/Asunción Peru:Lima
Philippines:Manila Poland:Warsaw Portugal:Lisbon Qatar:Doha Romania:Bucharest Russia:Moscow
Rwanda:Kigali Saint_Lucia:Castries Samoa:Apia San_Marino:San_Marino Saudi_Arabia:Riyadh
Senegal:Dakar Serbia:Belgrade Seychelles:Victoria Sierra_Leone:Freetown Singapore:Singapore
Slovakia:Bratislava Slovenia:Ljubljana Solomon_Islands:Honiara Somalia:Mogadishu
South_Africa:Pretoria/Cape_Town South_Korea:Seoul South_Sudan:Juba Spain:Madrid
Sri_Lanka:Colombo/Kotte Sudan:Khartoum Suriname:Paramaribo Sweden:Stockholm Switzerland:Bern
Syria:Damascus Taiwan:Taipei Tajikistan:Dushanbe Tanzania:Dodoma Thailand:Bangkok
Timor-Leste:Dili Togo:Lome/Lomé Tonga:Nuku'alofa/Nukuʻalofa Trinidad_and_Tobago:Port_of_Spain
Tunisia:Tunis Turkey:Ankara Turkmenistan:Ashgabat Tuvalu:Funafuti Uganda:Kampala Ukraine:Kyiv/Kiev
United_Arab_Emirates:Abu_Dhabi United_Kingdom:London United_States:Washington
Uruguay:Montevideo Uzbekistan:Tashkent Vanuatu:Port_Vila Vatican_City:Vatican Venezuela:Caracas
Vietnam:Hanoi Yemen:Sanaa/Sana'a Zambia:Lusaka Zimbabwe:Harare
"""
CAPITALS = {
    country: tuple(names.split("/"))
    for country, _, names in (pair.replace("_", " ").partition(":") for pair in PAIRS.split())
}
